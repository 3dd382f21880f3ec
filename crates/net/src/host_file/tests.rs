//! What a file says that lists workers.

use super::*;

fn read(text: &str) -> Result<Vec<String>, String> {
    let lines = read_lines("hosts.txt", text).map_err(|error| error.to_string())?;
    let shown = |line: HostLine| format!("{} {}", line.address, line.name);
    Ok(lines.into_iter().map(shown).collect())
}

#[test]
fn a_byte_order_mark_is_no_part_of_an_address() {
    assert_eq!(
        read("\u{feff}lab1 # first\n\nlab2:5\n").unwrap(),
        ["lab1:7601 lab1", "lab2:5 lab2"]
    );
}

#[test]
fn one_address_is_one_worker_with_one_name() {
    assert_eq!(
        read("10.0.0.1:5 lab1\nlab2\n10.0.0.1:5 lab1 slots=3\n").unwrap(),
        ["10.0.0.1:5 lab1", "lab2:7601 lab2"]
    );
    assert_eq!(
        read("10.0.0.1:5 lab1\n10.0.0.1:5 lab2\n").unwrap_err(),
        "hosts.txt, line 2: got 10.0.0.1:5 as lab2, and as lab1 in line 1; expected one line for each worker"
    );
}

#[test]
fn an_address_is_no_name() {
    for name in ["127.0.0.1:17611", "lab2:7601", "[::1]:7601"] {
        let wrong = HostLine::read(&format!("lab1 {name}"), 7601).unwrap_err();
        assert!(
            matches!(&wrong, HostLineError::AddressAsName { name: got, .. } if got == name),
            "{wrong}"
        );
    }
    for name in ["::1", "2001:db8::7:1", "lab:gpu"] {
        assert_eq!(
            HostLine::read(&format!("lab1 {name}"), 1).unwrap().name,
            name
        );
    }
}
