"""Exoskel: run one parallel program across machines you trust and machines you don't.

Every peer is authenticated; only the wires that need it are encrypted. Start with `Manager`, or with `Executor` where a
`concurrent.futures.Executor` is wanted::

    import exoskel as ex

    program = ex.Pipeline(denoise, render)
    with ex.Manager(program, ex.ParDegree(4)) as manager:
        for image in manager.map(slices, progress=True):
            ...

The names below are loaded when they are first used, so that ``import exoskel`` costs next to nothing.
"""

# Type checkers take any name TYPE_CHECKING as true; the real one would cost an import of `typing`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from .agents_launcher import Agents
    from .carried import Scan, Stateful
    from .contracts import Contract, Cost, Deadline, ParDegree, Throughput
    from .errors import (
        AuthenticationError,
        CouplingError,
        CredentialError,
        ExoskelError,
        ForkError,
        InitializerError,
        ItemTimeoutError,
        JournalError,
        KeeperError,
        KeyMemoryError,
        LinkError,
        MemberLostError,
        NoAddressError,
        NoWorkerError,
        PolicyError,
        ProcessEndedError,
        ProgramError,
        ProgramLeftError,
        RefusedError,
        RemoteTraceback,
        ResultRejectedError,
        SharedLostError,
        SizeLimitError,
        StartpointError,
        TaskError,
        VersionError,
        WorkerLostError,
    )
    from .executor import Executor
    from .feedback import Again
    from .formats import File, Files, JsonLines, Lines, Records
    from .history import History, SlotChange
    from .job import Job
    from .job_processes import Process, Processes
    from .job_summary import JobSummary, ProcessSummary
    from .launchers import Local, Ssh
    from .manager import Manager
    from .member import Member, SharedArray
    from .patterns import DivideAndConquer, FlatMap, Iterate, Map, Reduce
    from .pool import Pool
    from .redistribution import Indices, Layout, PlannedMessage, RedistributionPlan, plan
    from .results import register_result_type
    from .runs import RunSummary, run
    from .sandbox import Sandbox
    from .shared_contents import Shared
    from .sinks import Sink
    from .skeletons import Farm, Pipeline, Seq, Skeleton
    from .slurm_launcher import Slurm
    from .sources import Source
    from .status import Status, StreamStatus, WorkerStatus
    from .summary import KeySummary, Summary, WorkerSummary

__version__ = "0.1.0"

__all__ = [
    "Again",
    "Agents",
    "AuthenticationError",
    "Contract",
    "Cost",
    "CouplingError",
    "CredentialError",
    "Deadline",
    "DivideAndConquer",
    "Executor",
    "ExoskelError",
    "Farm",
    "File",
    "Files",
    "FlatMap",
    "ForkError",
    "History",
    "Indices",
    "InitializerError",
    "ItemTimeoutError",
    "Iterate",
    "Job",
    "JobSummary",
    "JournalError",
    "JsonLines",
    "KeeperError",
    "KeyMemoryError",
    "KeySummary",
    "Layout",
    "Lines",
    "LinkError",
    "Local",
    "Manager",
    "Map",
    "Member",
    "MemberLostError",
    "NoAddressError",
    "NoWorkerError",
    "ParDegree",
    "Pipeline",
    "PlannedMessage",
    "PolicyError",
    "Pool",
    "Process",
    "ProcessEndedError",
    "ProcessSummary",
    "Processes",
    "ProgramError",
    "ProgramLeftError",
    "Records",
    "RedistributionPlan",
    "Reduce",
    "RefusedError",
    "RemoteTraceback",
    "ResultRejectedError",
    "RunSummary",
    "Sandbox",
    "Scan",
    "Seq",
    "Shared",
    "SharedArray",
    "SharedLostError",
    "Sink",
    "SizeLimitError",
    "Skeleton",
    "SlotChange",
    "Slurm",
    "Source",
    "Ssh",
    "StartpointError",
    "Stateful",
    "Status",
    "StreamStatus",
    "Summary",
    "TaskError",
    "Throughput",
    "VersionError",
    "WorkerLostError",
    "WorkerStatus",
    "WorkerSummary",
    "plan",
    "register_result_type",
    "run",
]

_HOMES = {
    "Again": "feedback",
    "Agents": "agents_launcher",
    "Contract": "contracts",
    "Cost": "contracts",
    "Deadline": "contracts",
    "DivideAndConquer": "patterns",
    "Executor": "executor",
    "Farm": "skeletons",
    "File": "formats",
    "Files": "formats",
    "FlatMap": "patterns",
    "History": "history",
    "Indices": "redistribution",
    "Iterate": "patterns",
    "Job": "job",
    "JobSummary": "job_summary",
    "JsonLines": "formats",
    "KeySummary": "summary",
    "Layout": "redistribution",
    "Lines": "formats",
    "Local": "launchers",
    "Manager": "manager",
    "Map": "patterns",
    "Member": "member",
    "ParDegree": "contracts",
    "Pipeline": "skeletons",
    "PlannedMessage": "redistribution",
    "Pool": "pool",
    "Process": "job_processes",
    "ProcessSummary": "job_summary",
    "Processes": "job_processes",
    "Records": "formats",
    "RedistributionPlan": "redistribution",
    "Reduce": "patterns",
    "RemoteTraceback": "errors",
    "RunSummary": "runs",
    "Sandbox": "sandbox",
    "Scan": "carried",
    "Seq": "skeletons",
    "Shared": "shared_contents",
    "SharedArray": "member",
    "Sink": "sinks",
    "Skeleton": "skeletons",
    "SlotChange": "history",
    "Slurm": "slurm_launcher",
    "Source": "sources",
    "Ssh": "launchers",
    "Stateful": "carried",
    "Status": "status",
    "StreamStatus": "status",
    "Summary": "summary",
    "Throughput": "contracts",
    "WorkerStatus": "status",
    "WorkerSummary": "summary",
    "plan": "redistribution",
    "register_result_type": "results",
    "run": "runs",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first used (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = _HOMES.get(name, "errors")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
