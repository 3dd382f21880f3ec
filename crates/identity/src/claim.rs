//! What somebody says they are: a role and a name, and how both are written in a certificate.

use std::fmt;
use std::str::FromStr;

use crate::limits::{NAME_BYTES_MAX, SUBJECT_BYTES_MAX};
use crate::peer_text::PeerText;

mod error;
mod process;

pub use error::ClaimError;
pub(crate) use process::PROCESS_MARK;
pub use process::{JOB_NUMBER_BYTES, JobNumber, JobProcess};

/// What a node may be to others. It stands in the node's certificate, so that one leaf can't pose as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Plans, recruits workers and sends them code.
    Manager,
    /// Executes what managers send.
    Worker,
    /// Forwards between subnets and sees ciphertext only.
    Gateway,
    /// Starts processes on a host on behalf of a manager.
    Agent,
    /// Has links with others, and neither runs code for them nor has them run any.
    Peer,
}

impl Role {
    /// Every role, in the order in which they are listed to people.
    pub const ALL: [Self; 5] = [
        Self::Manager,
        Self::Worker,
        Self::Gateway,
        Self::Agent,
        Self::Peer,
    ];

    /// What a person of a grid may be, and every proxy. The first one is meant where nobody says otherwise.
    pub(crate) const OF_PERSONS: [Self; 2] = [Self::Manager, Self::Peer];

    /// What a host of a grid may be. The first one is meant where nobody says otherwise.
    pub(crate) const OF_HOSTS: [Self; 4] = [Self::Worker, Self::Gateway, Self::Agent, Self::Peer];

    /// The word that stands in certificates, policies and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Manager => "manager",
            Self::Worker => "worker",
            Self::Gateway => "gateway",
            Self::Agent => "agent",
            Self::Peer => "peer",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl FromStr for Role {
    type Err = ClaimError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or_else(|| ClaimError::UnknownRole {
                got: PeerText::new(text),
            })
    }
}

/// A claimed identity: a role and a name.
///
/// # Security
/// Anybody can write one. Only [`VerifiedIdentity`](crate::VerifiedIdentity) opens doors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// What the node is.
    pub role: Role,
    /// Which one it is, most often a host name. [`Identity::new`], [`Identity::of_subject`] and [`Identity::of_process`] say what it may hold.
    pub name: String,
}

impl fmt::Display for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.role, self.name)
    }
}

const SCHEME: &str = "exoskel:";
const ROLE: &str = "role:";
const NAME: &str = "name:";

impl Identity {
    /// Makes an identity whose name can stand in a certificate. ASCII capitals become small letters, because
    /// host names don't distinguish them.
    ///
    /// # Errors
    /// [`ClaimError::BadName`] when the name is empty, longer than [`NAME_BYTES_MAX`], starts with `-` or `.`, ends
    /// with `.` (which would be a second spelling of a host's name), or holds anything but letters, digits and `. - _ : @ +`. A `*` is refused above all: rules match names by
    /// patterns, and a name must never look like one.
    pub fn new(role: Role, name: &str) -> Result<Self, ClaimError> {
        let name = name.to_ascii_lowercase();
        check_name(&name)?;
        Ok(Self { role, name })
    }

    /// Makes the identity of somebody whom a grid knows by a distinguished name in slash form
    /// ([`DistinguishedName::slash`](crate::DistinguishedName::slash)): a person, a robot, or a proxy of anybody. Those are
    /// managers or peers. No name of a host has a slash, so nobody can be taken for one of the two who is the other.
    ///
    /// # Errors
    /// [`ClaimError::PersonsRole`] for the role of a host. [`ClaimError::BadSubject`] when the subject doesn't begin with a slash, is
    /// longer than [`SUBJECT_BYTES_MAX`], or holds anything but printable ASCII.
    pub fn of_subject(role: Role, subject: &str) -> Result<Self, ClaimError> {
        if !Role::OF_PERSONS.contains(&role) {
            return Err(ClaimError::PersonsRole { got: role });
        }
        let well_formed = subject.starts_with('/')
            && subject.len() <= SUBJECT_BYTES_MAX
            && subject.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if well_formed {
            Ok(Self {
                role,
                name: subject.to_owned(),
            })
        } else {
            Err(ClaimError::BadSubject {
                got: PeerText::new(subject),
            })
        }
    }

    /// Makes the identity of a job's process on a host: its name is the host's, a `#`, and which process it is.
    ///
    /// # Errors
    /// [`ClaimError::BadName`] as [`new`](Self::new) has it, and when there is no room left behind the host's name.
    pub fn of_process(role: Role, host: &str, process: JobProcess) -> Result<Self, ClaimError> {
        let host = Self::new(role, host)?.name;
        Self::from_statement(role, &format!("{host}{PROCESS_MARK}{process}"))
    }

    /// The host of a job's process; the whole name of anybody else. Patterns and trust domains are held against it.
    #[must_use]
    pub fn host(&self) -> &str {
        host_of(&self.name)
    }

    /// Which process of which job it is, if it is one.
    #[must_use]
    pub fn process(&self) -> Option<JobProcess> {
        if self.name.starts_with('/') {
            return None;
        }
        self.name.split_once(PROCESS_MARK)?.1.parse().ok()
    }

    /// Reads an identity as a peer states it about itself: exactly as its certificate proves it, so that a name which
    /// would be changed by normalising it is refused.
    ///
    /// # Errors
    /// [`ClaimError`] as [`new`](Self::new) and, for a name with a slash in front, [`of_subject`](Self::of_subject) have it.
    pub fn from_statement(role: Role, name: &str) -> Result<Self, ClaimError> {
        if name.starts_with('/') {
            return Self::of_subject(role, name);
        }
        check_stated_name(name)?;
        Ok(Self {
            role,
            name: name.to_owned(),
        })
    }

    /// The two URIs that state this identity in a certificate's subject alternative names.
    pub fn to_uris(&self) -> [String; 2] {
        [
            format!("{SCHEME}{ROLE}{}", self.role),
            format!("{SCHEME}{NAME}{}", self.name),
        ]
    }

    /// Reads the identity that a certificate's URIs state. URIs of other schemes are none of our business.
    ///
    /// # Errors
    /// [`ClaimError`] unless there is exactly one role and exactly one name, both well formed, and no other
    /// statement of our scheme: a statement that this version doesn't know could be a restriction.
    pub fn from_uris<'a>(uris: impl IntoIterator<Item = &'a str>) -> Result<Self, ClaimError> {
        let (mut role, mut name) = (None, None);
        for uri in uris {
            let Some(statement) = our_statement(uri)? else {
                continue;
            };
            if let Some(text) = statement.strip_prefix(ROLE) {
                if role.replace(Role::from_str(text)?).is_some() {
                    return Err(ClaimError::SeveralRoles);
                }
            } else if let Some(text) = statement.strip_prefix(NAME) {
                check_stated_name(text)?;
                if name.replace(text).is_some() {
                    return Err(ClaimError::SeveralNames);
                }
            } else {
                return Err(ClaimError::UnknownStatement {
                    got: PeerText::new(uri),
                });
            }
        }
        Ok(Self {
            role: role.ok_or(ClaimError::MissingRole)?,
            name: name.ok_or(ClaimError::MissingName)?.to_owned(),
        })
    }
}

impl Identity {
    /// Whether a URI is of our scheme, well formed or not.
    pub(crate) fn is_statement(uri: &str) -> bool {
        !matches!(our_statement(uri), Ok(None))
    }
}

/// The part after our scheme, or nothing for a URI of another scheme. Schemes ignore case, we don't: two spellings of
/// one statement are one too many.
fn our_statement(uri: &str) -> Result<Option<&str>, ClaimError> {
    if let Some(statement) = uri.strip_prefix(SCHEME) {
        return Ok(Some(statement));
    }
    match uri.get(..SCHEME.len()) {
        Some(start) if start.eq_ignore_ascii_case(SCHEME) => Err(ClaimError::UnknownStatement {
            got: PeerText::new(uri),
        }),
        _ => Ok(None),
    }
}

/// The host in a name, whoever's it is. Distinguished names have none, and may have a `#`.
pub(crate) fn host_of(name: &str) -> &str {
    match name.split_once(PROCESS_MARK) {
        Some((host, _)) if !name.starts_with('/') => host,
        _ => name,
    }
}

/// A name as certificates and peers state it: that of a job's process, too.
fn check_stated_name(name: &str) -> Result<(), ClaimError> {
    let Some((host, process)) = name.split_once(PROCESS_MARK) else {
        return check_name(name);
    };
    if name.len() > NAME_BYTES_MAX {
        return Err(ClaimError::BadName {
            got: PeerText::new(name),
        });
    }
    check_name(host)?;
    process.parse::<JobProcess>().map(drop)
}

fn check_name(name: &str) -> Result<(), ClaimError> {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_:@+".contains(&byte);
    let well_formed = !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && !name.starts_with(['-', '.'])
        && !name.ends_with('.')
        && name.bytes().all(allowed);
    if well_formed {
        Ok(())
    } else {
        Err(ClaimError::BadName {
            got: PeerText::new(name),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_reads_back() {
        for role in Role::ALL {
            assert_eq!(role.to_string().parse(), Ok(role));
        }
        assert_eq!(
            "Manager".parse::<Role>(),
            Err(ClaimError::UnknownRole {
                got: PeerText::new("Manager")
            })
        );
    }

    #[test]
    fn a_process_of_a_job_reads_back_and_only_a_job_names_it() {
        let process = JobProcess {
            job: JobNumber::new([0xab; JOB_NUMBER_BYTES]),
            number: 17,
        };
        let identity = Identity::of_process(Role::Peer, "Lab1.example.org", process).unwrap();
        let job = "ab".repeat(16);
        assert_eq!(identity.name, format!("lab1.example.org#17.{job}"));
        assert_eq!(identity.host(), "lab1.example.org");
        assert_eq!(identity.process(), Some(process));
        let uris = identity.to_uris();
        let read = Identity::from_uris(uris.iter().map(String::as_str));
        assert_eq!(read.as_ref(), Ok(&identity));
        assert_eq!(
            Identity::from_statement(Role::Peer, &identity.name),
            Ok(identity.clone())
        );
        // An authority of a site doesn't make such names.
        assert!(Identity::new(Role::Peer, &identity.name).is_err());
        let long = "a".repeat(NAME_BYTES_MAX);
        assert!(Identity::of_process(Role::Peer, &long, process).is_err());
        for name in [
            format!("#17.{job}"),
            format!("lab1#17.{job}#1.{job}"),
            format!("lab1#017.{job}"),
            "lab1#".to_owned(),
            "lab1#17".to_owned(),
        ] {
            assert!(
                Identity::from_statement(Role::Peer, &name).is_err(),
                "{name}"
            );
        }
        // A person's name may have such a character, and is no process's.
        let person = Identity::of_subject(Role::Peer, &format!("/CN=a#17.{job}")).unwrap();
        assert_eq!(
            (person.process(), person.host()),
            (None, person.name.as_str())
        );
    }

    #[test]
    fn an_identity_reads_back_from_its_uris() {
        let identity = Identity::new(Role::Worker, "Lab1.Example.org").unwrap();
        assert_eq!(identity.to_string(), "worker lab1.example.org");
        let uris = identity.to_uris();
        assert_eq!(
            uris,
            ["exoskel:role:worker", "exoskel:name:lab1.example.org"]
        );
        let foreign = [
            "https://example.org/",
            uris[1].as_str(),
            "",
            "exo",
            uris[0].as_str(),
        ];
        assert_eq!(Identity::from_uris(foreign), Ok(identity));
    }

    /// Each line breaks one rule of "exactly one role, exactly one name, nothing else of ours".
    #[test]
    fn anything_but_one_role_and_one_name_is_refused() {
        let (role, name) = ("exoskel:role:worker", "exoskel:name:a");
        let cases: [(&[&str], ClaimError); 9] = [
            (&[], ClaimError::MissingRole),
            (&[name], ClaimError::MissingRole),
            (&[role], ClaimError::MissingName),
            (&[role, role, name], ClaimError::SeveralRoles),
            (
                &[role, "exoskel:role:manager", name],
                ClaimError::SeveralRoles,
            ),
            (&[role, name, "exoskel:name:b"], ClaimError::SeveralNames),
            (
                &[role, name, "exoskel:only:x"],
                ClaimError::UnknownStatement {
                    got: PeerText::new("exoskel:only:x"),
                },
            ),
            (
                &["Exoskel:role:worker", name],
                ClaimError::UnknownStatement {
                    got: PeerText::new("Exoskel:role:worker"),
                },
            ),
            (
                &["exoskel:role:root", name],
                ClaimError::UnknownRole {
                    got: PeerText::new("root"),
                },
            ),
        ];
        for (uris, error) in cases {
            assert_eq!(
                Identity::from_uris(uris.iter().copied()),
                Err(error),
                "{uris:?}"
            );
        }
    }

    #[test]
    fn names_that_could_mean_something_else_are_refused() {
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for name in [
            "", "*", "lab*", "-rf", ".hidden", "lab1.", ".", "a b", "a/b", "a\0b", "ü", "a\n",
            &long,
        ] {
            assert!(Identity::new(Role::Worker, name).is_err(), "{name:?}");
        }
        for name in [
            "a",
            "10.0.0.1",
            "::1",
            "alice@example.org",
            "node_7",
            &long[1..],
        ] {
            assert!(Identity::new(Role::Worker, name).is_ok(), "{name:?}");
        }
        assert!(Identity::from_uris(["exoskel:role:worker", "exoskel:name:Lab"]).is_err());
    }

    #[test]
    fn only_managers_and_peers_have_the_name_of_a_subject() {
        let alice = "/DC=org/CN=Alice \\xC3\\xBC*";
        for role in [Role::Manager, Role::Peer] {
            let identity = Identity::of_subject(role, alice).unwrap();
            assert_eq!(identity.to_string(), format!("{role} {alice}"));
            assert_eq!(Identity::from_statement(role, alice), Ok(identity));
        }
        for role in [Role::Worker, Role::Gateway, Role::Agent] {
            let refused = Err(ClaimError::PersonsRole { got: role });
            assert_eq!(Identity::of_subject(role, alice), refused);
            assert_eq!(Identity::from_statement(role, alice), refused);
        }
        assert!(Identity::new(Role::Manager, alice).is_err());
        assert_eq!(
            Identity::from_statement(Role::Worker, "lab1"),
            Identity::new(Role::Worker, "lab1")
        );
        assert!(Identity::from_statement(Role::Worker, "Lab1").is_err());
        let long = format!("/CN={}", "a".repeat(SUBJECT_BYTES_MAX - 4));
        assert!(Identity::of_subject(Role::Manager, &long).is_ok());
        for subject in ["", "CN=a", "/CN=\u{fc}", "/CN=a\n", &format!("{long}a")] {
            let made = Identity::of_subject(Role::Manager, subject);
            assert!(made.is_err(), "{subject:?}");
        }
    }
}
