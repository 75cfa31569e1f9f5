"""What a job asks of its cluster, read from a TOML file, and its submission."""

from __future__ import annotations

import shutil
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from contrapose.extras import install_command, nearest
from contrapose.lab.counts import count_of
from contrapose.lab.jobs.resumable import Resumable
from contrapose.validate import check_count, check_number

_TEXTS = ("partition", "account")
_COUNTS = {
    "nodes": 1,
    "gpus_per_node": 0,
    "tasks_per_node": 0,
    "cpus_per_task": 1,
    "max_requeues": 0,
    "save_seconds": 1,
}
# Options of sbatch that a key outside of [sbatch] sets, or submitit.
_RESERVED = {
    "time": "hours", "partition": "partition", "account": "account", "nodes": "nodes", "ntasks-per-node": "tasks_per_node",
    "gpus-per-node": "gpus_per_node", "cpus-per-task": "cpus_per_task", "signal": "save_seconds",
    "requeue": "max_requeues", "output": "", "error": "", "open-mode": "", "array": "",
}  # fmt: skip


@dataclass(frozen=True)
class JobDescription:
    """A job: its cluster, which is slurm or local, and what it asks of it. All other fields are keys of the file."""

    cluster: str
    hours: float  # time limit
    partition: str = ""
    account: str = ""
    nodes: int = 1
    gpus_per_node: int = 0
    tasks_per_node: int = 0  # processes; 0: one for each GPU, or one
    cpus_per_task: int = 1
    max_requeues: int = 10  # after the time limit; preemption does not count
    save_seconds: int = 120  # between the signal and the time limit
    setup: Sequence[str] = ()  # lines of shell before the processes start
    sbatch: dict[str, Any] = field(default_factory=dict)  # further options

    @property
    def processes_per_node(self) -> int:
        """Return the number of processes on each node."""
        return self.tasks_per_node or max(1, self.gpus_per_node)

    @property
    def world_size(self) -> int:
        """Return the number of processes of the job."""
        return self.nodes * self.processes_per_node

    def submit(self, works: Sequence[Resumable], folder: Path, *, name: str, at_a_time: int | None = None) -> list[Any]:
        """Submit a job for each work, several as an array; return submitit's jobs.

        folder      gets a new folder for the jobs' scripts, logs and pickles
        at_a_time   the largest number of jobs of the array that run at the same time
        """
        from submitit.core.utils import FailedJobError, FailedSubmissionError
        from submitit.helpers import clean_env

        self._check_cluster()
        # Whoever can write to this folder can execute code in the jobs, since they read pickles. A new folder with a name that
        # cannot be guessed belongs to the user alone, and has no pickles that somebody else has planted.
        folder.mkdir(parents=True, exist_ok=True)
        folder = Path(mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=folder))
        executor = self._slurm(folder, name, at_a_time) if self.cluster == "slurm" else self._local(folder)
        try:
            with clean_env():  # a job may be submitted from within another one
                jobs: list[Any] = executor.submit_array(works)
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            raise ValueError(f"executor: Slurm did not accept the job: {str(error).strip()}") from error
        return jobs

    def how_to_cancel(self, job: Any) -> str:
        """Return the command that stops a job; the run saves its step first."""
        return f"scancel {job.job_id}" if self.cluster == "slurm" else f"kill {job.job_id}"

    def in_words(self) -> str:
        """Return the job's size, such as "2 nodes with 4 processes each"."""
        processes = count_of(self.processes_per_node, "process")
        return f"{count_of(self.nodes, 'node')} with {processes}" + (" each" if self.nodes > 1 else "")

    def _check_cluster(self) -> None:
        if self.cluster == "slurm" and shutil.which("srun") is None:
            raise ValueError(
                "executor: this machine has no srun, a command of Slurm; submit the job on a login node of the cluster, "
                "or try it with local:FILE"
            )
        if self.cluster == "local" and self.nodes > 1:
            raise ValueError(f"executor: a local job has one node, this machine; got nodes = {self.nodes}")

    def _slurm(self, folder: Path, name: str, at_a_time: int | None) -> Any:
        from submitit import SlurmExecutor

        executor = SlurmExecutor(folder, max_num_timeout=self.max_requeues)
        optional = {"array_parallelism": at_a_time} if at_a_time else {}
        executor.update_parameters(
            job_name=name,
            time=max(1, round(self.hours * 60)),
            partition=self.partition or None,
            account=self.account or None,
            nodes=self.nodes,
            ntasks_per_node=self.processes_per_node,
            gpus_per_node=self.gpus_per_node or None,
            cpus_per_task=self.cpus_per_task,
            srun_args=[
                f"--cpus-per-task={self.cpus_per_task}"
            ],  # which srun does not take from sbatch since Slurm 22.05
            setup=list(self.setup),
            signal_delay_s=self.save_seconds,
            stderr_to_stdout=True,
            wckey=None,  # submitit's own, which clusters with a list of keys refuse
            additional_parameters={"requeue": True} | {k: v for k, v in self.sbatch.items() if v is not False},
            **optional,
        )
        return executor

    def _local(self, folder: Path) -> Any:
        from submitit import LocalExecutor

        executor = LocalExecutor(folder, max_num_timeout=self.max_requeues)
        executor.update_parameters(
            timeout_min=self.hours * 60,
            tasks_per_node=self.processes_per_node,
            gpus_per_node=self.gpus_per_node,
            signal_delay_s=self.save_seconds,
            stderr_to_stdout=True,
        )
        return executor


def read_description(executor: str) -> JobDescription:
    """Return the job that slurm:FILE or local:FILE describes; raise ValueError for a file that describes none."""
    cluster, _, file = executor.partition(":")
    path = Path(file)
    try:
        content = tomllib.loads(path.read_text())
    except (ValueError, OSError, RecursionError) as error:
        reason = "is not valid TOML" if path.is_file() else "cannot be read"
        raise ValueError(
            f"executor: {file or 'FILE'} {reason}: {error}; expected a TOML file with lines such as hours = 24"
        ) from error
    try:
        description = _checked(cluster, content)
    except ValueError as error:
        raise ValueError(f"executor: {path}: {error}") from error
    try:
        import submitit  # noqa: F401
    except ImportError as error:
        raise ValueError(f"executor: {cluster}:FILE needs submitit: {install_command('slurm')}") from error
    return description


def _checked(cluster: str, content: dict[str, Any]) -> JobDescription:
    known = [item.name for item in fields(JobDescription)][1:]
    for key in content:
        if key not in known:
            hint = nearest(key, known) or f" (it may set {', '.join(known)})"
            raise ValueError(f"{key}: no such key{hint}; other options of sbatch go into a table [sbatch]")
    if "hours" not in content:
        raise ValueError("hours: expected the time limit of the job, such as hours = 24")
    check_number("hours", content["hours"], above=0)
    for key in [key for key in _COUNTS if key in content]:
        check_count(key, content[key], least=_COUNTS[key])
    for key in [key for key in _TEXTS if key in content]:
        if not isinstance(content[key], str):
            raise ValueError(f"{key}: expected a text, got {content[key]!r}")
    setup, options = content.get("setup", []), content.get("sbatch", {})
    if not isinstance(setup, list) or not all(isinstance(line, str) for line in setup):
        raise ValueError(f'setup: expected a list of texts, such as ["module load cuda"], got {setup!r}')
    if not isinstance(options, dict) or not all(isinstance(v, str | int | float) for v in options.values()):
        raise ValueError(f'sbatch: expected a table of options, such as qos = "low", got {options!r}')
    options = {key.replace("_", "-"): value for key, value in options.items()}
    for key in [key for key in _RESERVED if key in options]:
        instead = f"; set {_RESERVED[key]} above the table" if _RESERVED[key] else ", since submitit sets it"
        raise ValueError(f"sbatch: {key} cannot be set here{instead}")
    return JobDescription(cluster, **(content | {"sbatch": options}))


def check_executor(executor: str, *choices: str) -> None:
    """Raise ValueError unless the text is one of the choices, of which slurm:FILE and local:FILE stand for any file."""
    cluster, colon, _ = executor.partition(":")
    if (f"{cluster}:FILE" if colon else executor) not in choices:
        raise ValueError(f"executor: expected {', '.join(choices[:-1])} or {choices[-1]}, got {executor!r}")
