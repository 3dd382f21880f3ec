//! Unix sockets: whose they are, what the kernel's word on their ends is worth, and what it is not worth.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod wire;

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use exoskel_link::policy::PlaceProof;
use exoskel_link::{Protection, Protections};
use exoskel_net::address::Address;
use exoskel_net::listening::{ListenError, Listening};
use exoskel_net::socket::Socket;

use wire::folder::Folder;
use wire::relay::Relay;
use wire::{Site, accept, meet, run, text, unix, with_policy};

/// A site that trusts everything it can.
const TRUSTING: &str = r#"
[domain.here]
addresses = ["0.0.0.0/0", "::/0"]
names = ["*"]
results = "pickle"

[[rule]]
from = ["here", "host"]
to = ["here", "host"]
protection = "plain"
"#;

fn listen(path: impl Into<PathBuf>) -> Result<Listening, ListenError> {
    Listening::bind(&Address::Unix(path.into()))
}

/// What a killed process leaves: a socket at which nobody listens.
fn leave_stale(path: &Path) {
    drop(UnixListener::bind(path).unwrap());
    assert!(path.exists());
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn processes_of_one_account_are_on_this_host() {
    run(async {
        let site = Site::new();
        let folder = Folder::new();
        let path = folder.0.join("x.sock");
        let listening = listen(&path).unwrap();
        let (client, server) = meet(
            unix(&listening).await,
            &site.manager(),
            Some("lab1"),
            &site.worker("lab1"),
        )
        .await;
        for end in [client.unwrap(), server.unwrap()] {
            assert_eq!(end.proof, PlaceProof::SameHost);
            assert_eq!(end.domain.as_deref(), Some("host"));
            assert_eq!(end.protections.data, Protection::Plain);
            assert!(end.trusted_results);
            let transport = end.connection.transport();
            assert_eq!(transport.kind(), "unix");
            let who = format!(
                "unix:{} (process {} of account ",
                path.display(),
                std::process::id()
            );
            assert!(
                transport.peer_text().starts_with(&who),
                "{}",
                transport.peer_text()
            );
        }
    });
}

/// The kernel vouches for an account, and never for a role or a name.
#[test]
fn being_on_this_host_proves_no_identity() {
    run(async {
        let (site, other) = (Site::new(), Site::new());
        let folder = Folder::new();
        let listening = listen(folder.0.join("x.sock")).unwrap();
        let (client, server) = meet(
            unix(&listening).await,
            &other.manager(),
            None,
            &site.worker("lab1"),
        )
        .await;
        assert!(client.is_err() && server.is_err());
        let (client, server) = meet(
            unix(&listening).await,
            &site.manager(),
            Some("lab2"),
            &site.worker("lab1"),
        )
        .await;
        assert!(text(client).contains("lab2"));
        assert!(server.is_err());
        // A worker that wants to be a manager.
        let (client, server) = meet(
            unix(&listening).await,
            &site.worker("lab1"),
            None,
            &site.worker("lab1"),
        )
        .await;
        assert!(client.is_err() && server.is_err());
    });
}

/// The kernel vouches for the relay at both ends: it runs under our account. Its far end could be anywhere.
#[test]
fn a_relay_under_our_own_account_is_not_this_host() {
    run(async {
        let site = Site::new();
        let folder = Folder::new();
        let server = listen(folder.0.join("server.sock")).unwrap();
        let relay = listen(folder.0.join("relay.sock")).unwrap();
        let manager = with_policy(site.manager(), TRUSTING);
        let worker = with_policy(site.worker("lab1"), TRUSTING);
        let (_relay, sockets) = Relay::unix(&relay, &server).await;
        assert!(sockets.0.proven_same_host() && sockets.1.proven_same_host());
        let (client, server) = meet(sockets, &manager, None, &worker).await;
        for end in [client.unwrap(), server.unwrap()] {
            assert_eq!(end.proof, PlaceProof::Unproven);
            assert_eq!(end.protections, Protections::all(Protection::Encrypted));
            assert_eq!(end.domain, None);
            assert!(!end.trusted_results);
        }
    });
}

/// A client may give its end any name; what counts is where the other one listens.
#[test]
fn a_name_that_a_client_gives_itself_says_nothing() {
    run(async {
        let site = Site::new();
        let folder = Folder::new();
        let path = folder.0.join("x.sock");
        let listening = listen(&path).unwrap();
        let named =
            socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        let own = folder.0.join("own.sock");
        named.bind(&socket2::SockAddr::unix(&own).unwrap()).unwrap();
        named
            .connect(&socket2::SockAddr::unix(&path).unwrap())
            .unwrap();
        let client = Socket::unix(OwnedFd::from(named).into()).unwrap();
        let server = accept(&listening);
        assert_eq!(client.unix_path(), Some(own));
        assert_eq!(server.unix_path(), Some(path));
        let (manager, worker) = (site.manager(), site.worker("lab1"));
        let (client, server) = meet((client, server), &manager, None, &worker).await;
        for end in [client.unwrap(), server.unwrap()] {
            assert_eq!(end.proof, PlaceProof::Unproven);
            assert_eq!(end.protections, Protections::all(Protection::Encrypted));
        }
    });
}

#[test]
fn only_the_account_itself_can_connect_and_the_file_goes_with_its_owner() {
    let folder = Folder::new();
    let path = folder.0.join("x.sock");
    let listening = listen(&path).unwrap();
    assert_eq!(mode(&path), 0o600);
    assert_eq!(
        listening.address().to_string(),
        format!("unix:{}", path.display())
    );
    UnixStream::connect(&path).unwrap();
    drop(listening);
    assert!(!path.exists());
}

#[test]
fn a_dead_listeners_place_is_taken_and_a_live_ones_never() {
    let folder = Folder::new();
    let path = folder.0.join("x.sock");
    leave_stale(&path);
    let first = listen(&path).unwrap();
    let said = text(listen(&path));
    assert!(said.contains("the address is in use"), "{said}");
    assert!(said.contains(&path.display().to_string()), "{said}");
    UnixStream::connect(&path).unwrap();
    // A listener of another program is as live, and one that doesn't accept as well.
    drop(first);
    let other = UnixListener::bind(&path).unwrap();
    let waiting: Vec<_> = (0..3)
        .map(|_| UnixStream::connect(&path).unwrap())
        .collect();
    assert!(matches!(listen(&path), Err(ListenError::Taken(_))));
    drop((other, waiting));
    listen(&path).unwrap();
}

/// Whoever comes first has it; nobody listens at a file that is gone.
#[test]
fn of_many_that_find_a_dead_listener_one_takes_its_place() {
    const COUNT: usize = 8;
    let folder = Folder::new();
    for round in 0..20 {
        let path = folder.0.join(format!("{round}.sock"));
        leave_stale(&path);
        let barrier = Barrier::new(COUNT);
        let results: Vec<_> = std::thread::scope(|scope| {
            let bind = || {
                barrier.wait();
                listen(&path)
            };
            let threads: Vec<_> = (0..COUNT).map(|_| scope.spawn(bind)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let bound = results.iter().filter(|result| result.is_ok()).count();
        assert_eq!(bound, 1, "{results:?}");
        UnixStream::connect(&path).unwrap();
    }
}

#[test]
fn what_is_no_socket_is_left_alone() {
    let folder = Folder::new();
    let file = folder.0.join("notes.txt");
    fs::write(&file, "mine").unwrap();
    assert!(matches!(listen(&file), Err(ListenError::NoSocket(_))));
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    // Nor is it followed to where a link leads.
    let link = folder.0.join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    assert!(matches!(listen(&link), Err(ListenError::NoSocket(_))));
    assert!(matches!(listen(&folder.0), Err(ListenError::NoSocket(_))));
}

#[test]
fn a_file_that_is_not_ours_any_more_stays() {
    let folder = Folder::new();
    let path = folder.0.join("x.sock");
    let first = listen(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let second = listen(&path).unwrap();
    drop(first);
    UnixStream::connect(&path).unwrap();
    drop(second);
    assert!(!path.exists());
}

#[test]
fn a_directory_in_which_others_can_replace_files_is_refused() {
    let folder = Folder::new();
    for (bits, is_safe) in [
        (0o777, false),
        (0o770, false),
        (0o707, false),
        (0o1777, true),
        (0o755, true),
        (0o700, true),
    ] {
        let directory = folder.0.join(format!("{bits:o}"));
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(bits)).unwrap();
        let result = listen(directory.join("x.sock"));
        assert_eq!(result.is_ok(), is_safe, "{bits:o}: {result:?}");
        if let Err(error) = result {
            let said = error.to_string();
            assert!(said.contains(&format!("mode {bits:o}")), "{said}");
            // Nor in a folder of one's own below it.
            fs::create_dir(directory.join("own")).unwrap();
            let below = text(listen(directory.join("own/x.sock")));
            assert!(below.contains(&format!("mode {bits:o}")), "{below}");
        }
    }
}

#[test]
fn places_that_cannot_be_had_are_named() {
    let folder = Folder::new();
    let said = text(listen(folder.0.join("none").join("x.sock")));
    assert!(said.contains("none/x.sock: No such file"), "{said}");
    let said = text(listen(folder.0.join("x".repeat(108))));
    assert!(said.contains("File name too long"), "{said}");
    for (address, expected) in [
        ("unix:x.sock", "expected an absolute path: unix:/path"),
        ("unix:", "expected an absolute path"),
        ("lab1", "expected host:port or unix:/path"),
        ("lab1:port", "expected host:port or unix:/path"),
        ("lab1:65536", "expected host:port or unix:/path"),
    ] {
        let said = text(address.parse::<Address>());
        assert!(said.contains(expected), "{said}");
    }
    for address in ["unix:/run/x.sock", "lab1:7601", "[::1]:7601"] {
        assert_eq!(address.parse::<Address>().unwrap().to_string(), address);
    }
    assert_eq!(
        "tcp://lab1:1".parse(),
        Ok(Address::Tcp("lab1:1".to_owned()))
    );
}

/// A process in a sandbox has its listeners from before: it can make none.
#[test]
fn a_socket_that_listens_already_is_taken_over_and_another_one_is_not() {
    let folder = Folder::new();
    let path = folder.0.join("inherited");
    let first = Listening::bind(&Address::Unix(path.clone())).unwrap();
    let again = first.as_fd().try_clone_to_owned().unwrap();
    let taken = Listening::inherited(again).unwrap();
    assert_eq!(taken.address(), &Address::Unix(path.clone()));
    drop(taken);
    assert!(path.exists(), "the file is the first one's");
    let tcp = Listening::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let again = Listening::inherited(tcp.as_fd().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!(again.address(), tcp.address());
    let (one, _other) = UnixStream::pair().unwrap();
    assert!(Listening::inherited(one.into()).is_err());
}
