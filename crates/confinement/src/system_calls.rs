//! What a process can't ask of the kernel: seccomp.
//!
//! It is a list of what is refused. So that a newer kernel adds nothing to what is not, calls with numbers above those that this list knows
//! don't exist, as far as the process can see.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter, sock_filter,
};

use crate::{ConfinementError, NetworkAccess};

/// The first number that this list doesn't know: Linux 6.18 has none above. Another interface of x86-64 (x32) has all its numbers there.
const UNKNOWN: u32 = 470;

// The library has no names for these yet.
const FCHMODAT2: i64 = 452;
const SETXATTRAT: i64 = 463;
const GETXATTRAT: i64 = 464;
const LISTXATTRAT: i64 = 465;
const REMOVEXATTRAT: i64 = 466;
/// `IOPRIO_WHO_PROCESS` of `linux/ioprio.h`.
const IOPRIO_WHO_PROCESS: u64 = 1;
const OPEN_TREE_ATTR: i64 = 467;
const FILE_SETATTR: i64 = 469;

/// `clone3`, as a filter sees it.
const CLONE3: u32 = 435;

/// Refused whatever comes with them.
const REFUSED: &[i64] = &[
    // Other processes: their memory, descriptors, calls.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    // What holds it: to leave its process group would be to outlive its job.
    libc::SYS_setsid,
    libc::SYS_setpgid,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_personality,
    // Trees of files.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_inotify_add_watch,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    // What Landlock doesn't know of files: modes, owners, times and attributes. The account's own could be opened to others.
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SETXATTRAT,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    GETXATTRAT,
    LISTXATTRAT,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    REMOVEXATTRAT,
    FILE_SETATTR,
    // What stays when it ends, for others of the account.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_shmdt,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    // Memory that no limit counts, and files that no rule knows.
    libc::SYS_memfd_create,
    libc::SYS_memfd_secret,
    // Parts of the kernel with a language of their own, or that do others' calls.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_userfaultfd,
    // The machine.
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_nfsservctl,
    libc::SYS_lookup_dcookie,
];

/// Of one kind of processor.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS__sysctl,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[];

/// Without a network: whatever makes a socket lead somewhere.
const SOCKETS: [i64; 4] = [
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
];

/// A new namespace, each by its flag.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// The bits of a socket's type that aren't flags.
const SOCKET_KIND: u64 = 0xf;

/// To write into a terminal as if its user had, to have one send signals, or to copy from a console.
const TERMINAL_REQUESTS: [u64; 3] = [libc::TIOCSTI, libc::TIOCSCTTY, libc::TIOCLINUX];

/// The bits of a request that say of which kind it is.
const REQUEST_KIND: u64 = 0xff00;

/// What file systems are asked for, by kinds: flags and attributes of files that are only open for reading, and what else most of them know
/// (`f`), XFS (`X`) and Btrfs, whose volumes are made and removed so. To share blocks of files is one of these; who copies does without.
const FILE_SYSTEM_REQUESTS: [u64; 3] = [0x6600, 0x5800, 0x9400];

/// To have whoever opens a file wait, and to be told what becomes of a folder: both need no more than to read it.
const FILE_COMMANDS: [i32; 2] = [libc::F_SETLEASE, libc::F_NOTIFY];

/// Keeps them from this process.
pub(crate) fn apply(network: NetworkAccess) -> Result<String, ConfinementError> {
    apply_filter(prepare(network)?)
        .map_err(|error| ConfinementError::SystemCalls(error.to_string()))?;
    Ok(match network {
        NetworkAccess::Closed => "system calls, sockets among them (seccomp)".to_owned(),
        NetworkAccess::Open => "system calls (seccomp)".to_owned(),
    })
}

/// The program, made once: processes that are forked later have it.
pub(crate) fn prepare(network: NetworkAccess) -> Result<&'static BpfProgram, ConfinementError> {
    static CLOSED: OnceLock<BpfProgram> = OnceLock::new();
    static OPEN: OnceLock<BpfProgram> = OnceLock::new();
    let made = match network {
        NetworkAccess::Closed => &CLOSED,
        NetworkAccess::Open => &OPEN,
    };
    if let Some(program) = made.get() {
        return Ok(program);
    }
    let program =
        program(network).map_err(|error| ConfinementError::SystemCalls(error.to_string()))?;
    Ok(made.get_or_init(|| program))
}

fn program(network: NetworkAccess) -> Result<BpfProgram, BackendError> {
    let mut rules = BTreeMap::new();
    let mut refused = [REFUSED, REFUSED_HERE].concat();
    let has = |argument, mask: u64| only(argument, SeccompCmpOp::MaskedEq(mask), mask);
    let is = |argument, value: u64| only(argument, SeccompCmpOp::Eq, value);
    let flags = NAMESPACES.map(|flag| has(0, u64::from(flag.cast_unsigned())));
    rules.insert(libc::SYS_clone, all(flags)?);
    let of_kind = |kind| only(1, SeccompCmpOp::MaskedEq(REQUEST_KIND), kind);
    let requests = TERMINAL_REQUESTS.map(|request| is(1, request));
    let mut requests = all(requests)?;
    requests.extend(all(FILE_SYSTEM_REQUESTS.map(of_kind))?);
    rules.insert(libc::SYS_ioctl, requests);
    let commands = FILE_COMMANDS.map(|command| is(1, u64::from(command.cast_unsigned())));
    rules.insert(libc::SYS_fcntl, all(commands)?);
    // To end with those that have started it is nothing that it may take back.
    let death = u64::from(libc::PR_SET_PDEATHSIG.cast_unsigned());
    rules.insert(libc::SYS_prctl, vec![is(0, death)?]);
    // Of others of the account.
    for call in [
        libc::SYS_prlimit64,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setattr,
        libc::SYS_sched_setaffinity,
    ] {
        rules.insert(call, vec![only(0, SeccompCmpOp::Ne, 0)?]);
    }
    // What is open already has passed Landlock.
    let by_path = SeccompCondition::new(1, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?;
    rules.insert(libc::SYS_utimensat, vec![SeccompRule::new(vec![by_path])?]);
    let process = u64::from(libc::PRIO_PROCESS);
    let others = [
        only(0, SeccompCmpOp::Ne, process),
        only(1, SeccompCmpOp::Ne, 0),
    ];
    rules.insert(libc::SYS_setpriority, all(others)?);
    let others = [
        only(0, SeccompCmpOp::Ne, IOPRIO_WHO_PROCESS),
        only(1, SeccompCmpOp::Ne, 0),
    ];
    rules.insert(libc::SYS_ioprio_set, all(others)?);
    if network == NetworkAccess::Closed {
        refused.extend(SOCKETS);
        // A pair of streams leads nowhere else. A datagram goes where it says.
        let local = u64::from(libc::AF_UNIX.cast_unsigned());
        let kind = |kind: i32| {
            let kind = u64::from(kind.cast_unsigned());
            only(1, SeccompCmpOp::MaskedEq(SOCKET_KIND), kind)
        };
        let pairs = [
            only(0, SeccompCmpOp::Ne, local),
            kind(libc::SOCK_DGRAM),
            kind(libc::SOCK_RAW),
        ];
        rules.insert(libc::SYS_socketpair, all(pairs)?);
        // A listener that is shut down could connect by its first bytes.
        let first_bytes = u64::from(libc::MSG_FASTOPEN.cast_unsigned());
        rules.insert(libc::SYS_sendto, vec![has(3, first_bytes)?]);
        rules.insert(libc::SYS_sendmsg, vec![has(2, first_bytes)?]);
        rules.insert(libc::SYS_sendmmsg, vec![has(3, first_bytes)?]);
    }
    let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let architecture = std::env::consts::ARCH.try_into()?;
    let by_arguments = rules.keys().copied().collect::<Vec<_>>();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture)?;
    let mut program: BpfProgram = filter.try_into()?;
    let after_architecture = program.split_off(ARCHITECTURE_INSTRUCTIONS);
    program.extend(by_number(&verdicts(&refused, &by_arguments)));
    program.extend(after_architecture);
    Ok(program)
}

fn only(argument: u8, compared: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    let length = SeccompCmpArgLen::Dword;
    SeccompRule::new(vec![SeccompCondition::new(
        argument, length, compared, value,
    )?])
}

fn all<const COUNT: usize>(
    rules: [Result<SeccompRule, BackendError>; COUNT],
) -> Result<Vec<SeccompRule>, BackendError> {
    rules.into_iter().collect()
}

/// How many instructions the library begins with, which end a process that calls by another interface of the processor.
const ARCHITECTURE_INSTRUCTIONS: usize = 3;

/// What becomes of a call, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallVerdict {
    Allowed,
    Refused,
    /// It doesn't exist: programs and libraries do without, as they do on older kernels.
    Missing,
    /// Its arguments decide.
    ByArguments,
}

/// Verdicts from the numbers on with which they begin, by ascending number.
fn verdicts(refused: &[i64], by_arguments: &[i64]) -> Vec<(u32, CallVerdict)> {
    let verdict = |number: u32| match i64::from(number) {
        // Its flags are in memory, where nothing can look at them.
        _ if number >= UNKNOWN || number == CLONE3 => CallVerdict::Missing,
        call if refused.contains(&call) => CallVerdict::Refused,
        call if by_arguments.contains(&call) => CallVerdict::ByArguments,
        _ => CallVerdict::Allowed,
    };
    let mut all: Vec<_> = (0..=UNKNOWN)
        .map(|number| (number, verdict(number)))
        .collect();
    all.dedup_by_key(|(_, verdict)| *verdict);
    all
}

/// Finds the verdict of a call by halving. For every process that is confined the kernel runs the program for all numbers, to know those that it
/// needn't ask about again: instruction after instruction, this would be most of what a sandbox costs.
fn by_number(verdicts: &[(u32, CallVerdict)]) -> BpfProgram {
    let mut program = vec![instruction(LOAD, 0, 0, 0)];
    program.extend(search(verdicts));
    let end = program.len();
    for (place, jump) in program.iter_mut().enumerate() {
        if jump.code == JUMP && jump.k == TO_THE_END {
            jump.k = distance(end - place - 1);
        }
    }
    program
}

fn search(verdicts: &[(u32, CallVerdict)]) -> BpfProgram {
    if let [(_, verdict)] = verdicts {
        let error = |number: i32| libc::SECCOMP_RET_ERRNO | number.cast_unsigned();
        return vec![match verdict {
            CallVerdict::Allowed => instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
            CallVerdict::Refused => instruction(RETURN, error(libc::EPERM), 0, 0),
            CallVerdict::Missing => instruction(RETURN, error(libc::ENOSYS), 0, 0),
            CallVerdict::ByArguments => instruction(JUMP, TO_THE_END, 0, 0),
        }];
    }
    let (below, above) = verdicts.split_at(verdicts.len() / 2);
    let first = above.first().map_or(UNKNOWN, |(number, _)| *number);
    let (below, above) = (search(below), search(above));
    // A comparison reaches no further than its byte.
    let mut program = match u8::try_from(below.len()) {
        Ok(length) => vec![instruction(AT_LEAST, first, length, 0)],
        Err(_) => vec![
            instruction(AT_LEAST, first, 0, 1),
            instruction(JUMP, distance(below.len()), 0, 0),
        ],
    };
    program.extend(below);
    program.extend(above);
    program
}

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// Of a jump whose distance isn't known yet.
const TO_THE_END: u32 = u32::MAX;

fn instruction(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn distance(instructions: usize) -> u32 {
    u32::try_from(instructions).expect("a program has a few hundred instructions")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: u32 = libc::SECCOMP_RET_KILL_PROCESS;
    const REFUSAL: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    const MISSING: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

    /// What the kernel would do with a call: of its number, the interface and the arguments, in the order of `struct seccomp_data`. And
    /// after how many instructions.
    fn run(
        program: &[sock_filter],
        number: u32,
        architecture: u32,
        arguments: [u64; 6],
    ) -> (u32, usize) {
        let mut data = vec![number, architecture, 0, 0];
        for argument in arguments {
            data.extend([argument as u32, (argument >> 32) as u32]);
        }
        let (mut place, mut held, mut steps) = (0, 0u32, 0);
        loop {
            let one = &program[place];
            steps += 1;
            place += 1;
            let class = u32::from(one.code) & 0x07;
            if class == libc::BPF_RET {
                return (one.k, steps);
            }
            if class == libc::BPF_LD {
                held = data[one.k as usize / 4];
                continue;
            }
            if class == libc::BPF_ALU {
                assert_eq!(u32::from(one.code) & 0xf0, libc::BPF_AND);
                held &= one.k;
                continue;
            }
            assert_eq!(class, libc::BPF_JMP);
            let is = match u32::from(one.code) & 0xf0 {
                libc::BPF_JA => {
                    place += one.k as usize;
                    continue;
                }
                libc::BPF_JEQ => held == one.k,
                libc::BPF_JGT => held > one.k,
                libc::BPF_JGE => held >= one.k,
                other => panic!("an instruction that is not known here: {other}"),
            };
            place += usize::from(if is { one.jt } else { one.jf });
        }
    }

    fn architecture(program: &[sock_filter]) -> u32 {
        program[1].k
    }

    #[test]
    fn each_call_has_its_verdict_and_soon() {
        for network in [NetworkAccess::Closed, NetworkAccess::Open] {
            let program = program(network).unwrap();
            assert!(program.len() < 1000, "{} instructions", program.len());
            let ours = architecture(&program);
            let mut refused = [REFUSED, REFUSED_HERE].concat();
            if network == NetworkAccess::Closed {
                refused.extend(SOCKETS);
            }
            for number in (0..UNKNOWN + 100).chain([0x4000_0000, 0x4000_0065, u32::MAX]) {
                let (verdict, steps) = run(&program, number, ours, [0; 6]);
                let expected = match number {
                    CLONE3 => MISSING,
                    number if number >= UNKNOWN => MISSING,
                    number if refused.contains(&i64::from(number)) => REFUSAL,
                    // The first kind of them is none of this process's own.
                    number if i64::from(number) == libc::SYS_ioprio_set => REFUSAL,
                    // Of a network that is closed, none but pairs of sockets of this host.
                    number
                        if i64::from(number) == libc::SYS_socketpair
                            && network == NetworkAccess::Closed =>
                    {
                        REFUSAL
                    }
                    // With no path: of what is open. To nobody: of this process.
                    _ => libc::SECCOMP_RET_ALLOW,
                };
                assert_eq!(verdict, expected, "call {number}");
                if verdict != REFUSAL && number != libc::SYS_clone as u32 {
                    assert!(steps < 80, "{steps} instructions for call {number}");
                }
                // Numbers of another interface mean other calls.
                assert_eq!(run(&program, number, ours ^ 1, [0; 6]).0, KILLED);
            }
        }
    }

    #[test]
    fn arguments_decide_where_they_are_looked_at() {
        let program = program(NetworkAccess::Closed).unwrap();
        let ours = architecture(&program);
        let call = |number: i64, arguments| run(&program, number as u32, ours, arguments).0;
        let allowed = libc::SECCOMP_RET_ALLOW;
        let user = libc::CLONE_NEWUSER as u64;
        assert_eq!(
            call(libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]),
            allowed
        );
        assert_eq!(call(libc::SYS_clone, [user | 17, 0, 0, 0, 0, 0]), REFUSAL);
        assert_eq!(
            call(libc::SYS_ioctl, [0, libc::TCGETS, 0, 0, 0, 0]),
            allowed
        );
        assert_eq!(
            call(libc::SYS_ioctl, [0, libc::TIOCSTI, 0, 0, 0, 0]),
            REFUSAL
        );
        // FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, BTRFS_IOC_SUBVOL_CREATE, and with what stands above for the same.
        for request in [0x4008_6602, 0x401c_5820, 0x5000_940e, 0x1_4008_6602] {
            assert_eq!(call(libc::SYS_ioctl, [0, request, 0, 0, 0, 0]), REFUSAL);
        }
        for command in [libc::F_SETLEASE as u64, libc::F_NOTIFY as u64] {
            assert_eq!(call(libc::SYS_fcntl, [0, command, 0, 0, 0, 0]), REFUSAL);
        }
        for request in [libc::FIONBIO, libc::FIOCLEX, libc::TIOCGWINSZ] {
            assert_eq!(call(libc::SYS_ioctl, [0, request, 0, 0, 0, 0]), allowed);
        }
        let inherited = libc::F_DUPFD_CLOEXEC as u64;
        assert_eq!(call(libc::SYS_fcntl, [0, inherited, 0, 0, 0, 0]), allowed);
        assert_eq!(call(libc::SYS_prlimit64, [1, 0, 0, 0, 0, 0]), REFUSAL);
        assert_eq!(call(libc::SYS_socketpair, [1, 1, 0, 0, 0, 0]), allowed);
        assert_eq!(call(libc::SYS_socketpair, [1, 2, 0, 0, 0, 0]), REFUSAL);
        assert_eq!(
            call(libc::SYS_sendto, [0, 0, 0, 0x2000_0000, 0, 0]),
            REFUSAL
        );
    }

    #[test]
    fn no_call_is_in_the_lists_twice_or_above_what_they_know() {
        let mut calls: Vec<_> = REFUSED.iter().chain(REFUSED_HERE).chain(&SOCKETS).collect();
        let count = calls.len();
        calls.sort_unstable();
        calls.dedup();
        assert_eq!(calls.len(), count);
        assert!(
            calls
                .iter()
                .all(|call| (0..i64::from(UNKNOWN)).contains(*call))
        );
    }
}
