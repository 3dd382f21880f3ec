//! What a process can't ask of the kernel: seccomp.
//!
//! It is a list of what is refused. So that a newer kernel adds nothing to what is not, calls with numbers above those that this list knows
//! don't exist, as far as the process can see.

use std::collections::BTreeMap;

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

/// Keeps them from this process.
pub(crate) fn apply(network: NetworkAccess) -> Result<String, ConfinementError> {
    let refused = |error: &dyn std::error::Error| ConfinementError::SystemCalls(error.to_string());
    let program = program(network).map_err(|error| refused(&error))?;
    apply_filter(&program).map_err(|error| refused(&error))?;
    Ok(match network {
        NetworkAccess::Closed => "system calls, sockets among them (seccomp)".to_owned(),
        NetworkAccess::Open => "system calls (seccomp)".to_owned(),
    })
}

fn program(network: NetworkAccess) -> Result<BpfProgram, BackendError> {
    let mut rules = BTreeMap::new();
    let mut refused = [REFUSED, REFUSED_HERE].concat();
    let has = |argument, mask: u64| only(argument, SeccompCmpOp::MaskedEq(mask), mask);
    let is = |argument, value: u64| only(argument, SeccompCmpOp::Eq, value);
    let flags = NAMESPACES.map(|flag| has(0, u64::from(flag.cast_unsigned())));
    rules.insert(libc::SYS_clone, all(flags)?);
    let requests = TERMINAL_REQUESTS.map(|request| is(1, request));
    rules.insert(libc::SYS_ioctl, all(requests)?);
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
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture)?;
    let mut program = first_instructions(&refused);
    program.append(&mut filter.try_into()?);
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

/// The instructions before those that look at arguments. What doesn't exist: programs and libraries then do without, as they do on older
/// kernels; the flags of `clone3` are in memory, where nothing can look at them. And what is refused whatever comes with it, in an
/// instruction each: the kernel compiles the program for every process, which is most of what a sandbox costs.
fn first_instructions(refused: &[i64]) -> BpfProgram {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let instruction = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    let error = |number: i32| libc::SECCOMP_RET_ERRNO | number.cast_unsigned();
    let mut program = vec![
        instruction(LOAD, 0, 0, 0),
        instruction(AT_LEAST, UNKNOWN, 0, 1),
        instruction(RETURN, error(libc::ENOSYS), 0, 0),
        instruction(EQUAL, CLONE3, 0, 1),
        instruction(RETURN, error(libc::ENOSYS), 0, 0),
    ];
    let calls = refused.iter().filter_map(|call| u32::try_from(*call).ok());
    let calls: Vec<_> = calls.collect();
    for (place, call) in calls.iter().enumerate() {
        // To the refusal, over those that follow and the jump that skips it.
        let distance = u8::try_from(calls.len() - place).unwrap_or(u8::MAX);
        program.push(instruction(EQUAL, *call, distance, 0));
    }
    program.push(instruction(JUMP, 1, 0, 0));
    program.push(instruction(RETURN, error(libc::EPERM), 0, 0));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_for_each_network_fits_into_the_kernel() {
        for network in [NetworkAccess::Closed, NetworkAccess::Open] {
            let length = program(network).unwrap().len();
            assert!((100..400).contains(&length), "{length} instructions");
        }
    }

    #[test]
    fn no_call_is_in_the_lists_twice_or_above_what_they_know() {
        let mut calls: Vec<_> = REFUSED.iter().chain(REFUSED_HERE).chain(&SOCKETS).collect();
        let count = calls.len();
        calls.sort_unstable();
        calls.dedup();
        assert_eq!(calls.len(), count);
        // A jump over all of them.
        assert!(count < 256);
        assert!(
            calls
                .iter()
                .all(|call| (0..i64::from(UNKNOWN)).contains(*call))
        );
        // A jump goes no further.
        assert!(count < usize::from(u8::MAX));
    }

    #[test]
    fn each_refused_call_jumps_to_the_refusal() {
        let program = first_instructions(&[101, 165, 310]);
        let refusal = program.len() - 1;
        for (place, call) in [101, 165, 310].into_iter().enumerate() {
            let compared = &program[5 + place];
            assert_eq!((compared.k, compared.jf), (call, 0));
            assert_eq!(5 + place + 1 + usize::from(compared.jt), refusal);
        }
    }
}
