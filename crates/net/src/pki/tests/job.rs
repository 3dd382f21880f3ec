//! A job's authority: what it signs is good within the job, for the process that it names, and nowhere else.

use exoskel_identity::JobProcess;

use super::*;

/// A process with the credential that its job has signed for it.
fn process(job: &JobAuthority, host: &str, number: u32) -> Credential {
    let key = ProcessKey::new().unwrap();
    let signed = job
        .sign(Role::Peer, host, number, key.public_key(), at(NOW))
        .unwrap();
    key.credential(signed, job.root().clone()).unwrap()
}

#[test]
fn siblings_prove_themselves_to_each_other_and_to_nobody_else() {
    let job = JobAuthority::new(at(NOW)).unwrap();
    let [first, second] = [1, 2].map(|number| process(&job, "lab1.example.org", number));
    assert_eq!(judge(&first, &second, Role::Peer, NOW), Ok(()));
    let expected = JobProcess {
        job: job.job(),
        number: 2,
    };
    let identity = second.identity();
    assert_eq!(identity.process(), Some(expected));
    assert_eq!(identity.host(), "lab1.example.org");
    // Another job, a site.
    let other = JobAuthority::new(at(NOW)).unwrap();
    assert_ne!(other.job(), job.job());
    let stranger = process(&other, "lab1.example.org", 2);
    assert!(judge(&first, &stranger, Role::Peer, NOW).is_err());
    assert!(judge(&stranger, &first, Role::Peer, NOW).is_err());
    let folder = Folder::new();
    let site = AuthorityDirectory::initialise(folder.file("ca"), at(NOW)).unwrap();
    let host = site
        .issue(Role::Peer, "lab1.example.org", YEAR, at(NOW))
        .unwrap();
    assert!(judge(&host, &first, Role::Peer, NOW).is_err());
    assert!(judge(&first, &host, Role::Peer, NOW).is_err());
}

#[test]
fn one_process_cannot_stand_in_for_its_sibling() {
    let job = JobAuthority::new(at(NOW)).unwrap();
    let [first, second] = [1, 2].map(|number| process(&job, "lab1.example.org", number));
    let expected = Expected {
        roles: &[Role::Peer],
        name: Some(&second.identity().name),
    };
    let authority = first.authority(1).unwrap();
    let posed = authority.verify(first.chain(), at(NOW), &expected);
    assert!(
        matches!(posed, Err(IdentityError::WrongName { .. })),
        "{posed:?}"
    );
}

#[test]
fn what_was_signed_for_another_key_is_refused() {
    let job = JobAuthority::new(at(NOW)).unwrap();
    let [own, other] = [(); 2].map(|()| ProcessKey::new().unwrap());
    let signed = job
        .sign(Role::Peer, "lab1", 1, other.public_key(), at(NOW))
        .unwrap();
    let refused = own.credential(signed, job.root().clone());
    assert!(
        matches!(refused, Err(PkiError::NewCredential(_))),
        "{refused:?}"
    );
}

#[test]
fn what_is_no_key_is_not_signed() {
    let job = JobAuthority::new(at(NOW)).unwrap();
    let compressed = [2; 65];
    for bytes in [&[][..], &[4; 64], &[4; 66], &compressed] {
        let refused = job.sign(Role::Peer, "lab1", 1, bytes, at(NOW));
        assert!(
            matches!(refused, Err(PkiError::ProcessKey { .. })),
            "{refused:?}"
        );
    }
    let key = ProcessKey::new().unwrap();
    let refused = job.sign(Role::Peer, "lab1#2", 1, key.public_key(), at(NOW));
    assert!(matches!(refused, Err(PkiError::Claim(_))), "{refused:?}");
}
