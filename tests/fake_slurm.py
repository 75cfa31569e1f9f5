"""A cluster of one machine: the commands of Slurm as scripts that run jobs in the background, and requeue and cancel them.

`sbatch` starts a script, once for each task of its array; `srun` starts its processes with Slurm's variables; a job that
`scontrol requeue` names starts again when it ends. The file commands.log has all calls.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

HERE = Path(os.environ.get("FAKE_SLURM", "."))
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def install(folder: Path) -> Path:
    """Write the commands to a folder, which belongs at the front of PATH, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("sbatch", "srun", "scancel", "scontrol", "sacct"):
        command = shlex.join([sys.executable, __file__, name])
        (folder / name).write_text(f'#!/bin/sh\nFAKE_SLURM={shlex.quote(str(folder))} exec {command} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def options(script: str) -> dict[str, str]:
    """Return the options of sbatch in a script; flags are empty."""
    lines = re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", script, re.MULTILINE)
    return {key: "".join(shlex.split(value)) for key, value in lines}


def sbatch(path: str) -> None:
    """Start a script in the background."""
    script = Path(path).read_text()
    if options(script).get("partition") == "nowhere":
        sys.exit("sbatch: error: invalid partition specified: nowhere")
    number = 1000 + len(list(HERE.glob("*.script")))
    (HERE / f"{number}.script").write_text(script)
    count = int(re.split("[-%]", options(script).get("array", "0-0"))[1]) + 1
    for index in range(count):
        command = [sys.executable, __file__, "run_job", str(number), str(index) if "array" in options(script) else ""]
        subprocess.Popen(command, start_new_session=True, **QUIET)  # type: ignore[call-overload]
    print(f"Submitted batch job {number}")


def run_job(number: str, index: str) -> None:
    """Run a script, and again as long as it was requeued."""
    job, script = f"{number}_{index}" if index else number, HERE / f"{number}.script"
    wanted = options(script.read_text())
    tasks = int(wanted["nodes"]) * int(wanted["ntasks-per-node"])
    environment = os.environ | {"SLURM_JOB_ID": number, "SLURM_JOB_NUM_NODES": wanted["nodes"], "FAKE_JOB": job}
    environment |= {"SLURM_NTASKS": str(tasks), "SLURM_JOB_NODELIST": "localhost"}
    environment |= {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": index} if index else {}
    again, starts = HERE / f"{job}.requeue", HERE / f"{job}.starts"
    again.touch()
    while again.exists():
        again.unlink()
        with starts.open("a") as file:
            file.write("start\n")
        subprocess.run(["bash", str(script)], env=environment, check=False)
    (HERE / f"{job}.ended").touch()


def srun(*arguments: str) -> None:
    """Run the command in each process of the job, with its output in the file that submitit asks for."""
    variables = {"%j": "SLURM_JOB_ID", "%A": "SLURM_ARRAY_JOB_ID", "%a": "SLURM_ARRAY_TASK_ID"}
    output = arguments[arguments.index("--output") + 1]
    for pattern, variable in variables.items():
        output = output.replace(pattern, os.environ.get(variable, ""))
    command = arguments[arguments.index(sys.executable) :]
    processes = []
    for rank in map(str, range(int(os.environ["SLURM_NTASKS"]))):
        environment = os.environ | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NODEID": "0"}
        with open(output.replace("%t", rank), "a") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    pids = HERE / f"{os.environ['FAKE_JOB']}.pids"
    pids.write_text(" ".join(str(process.pid) for process in processes))
    codes = [process.wait() for process in processes]
    pids.unlink()
    sys.exit(max(abs(code) for code in codes))


def scancel(job: str, option: str = "", name: str = "TERM") -> None:
    """Signal all processes of a job, with their children, as Slurm does."""
    for path in [*HERE.glob(f"{job}.pids"), *HERE.glob(f"{job}_*.pids")]:
        for process in map(int, path.read_text().split()):
            for each in [process, *descendants(process)]:
                with suppress(ProcessLookupError):
                    os.kill(each, getattr(signal, f"SIG{name.removeprefix('SIG')}"))


def descendants(process: int) -> list[int]:
    """Return the ids of a process's children, and of theirs."""
    listed = Path(f"/proc/{process}/task/{process}/children")
    children = [int(child) for child in listed.read_text().split()] if listed.exists() else []
    return children + [other for child in children for other in descendants(child)]


def scontrol(action: str, job: str) -> None:
    """Requeue a job."""
    assert action == "requeue"
    (HERE / f"{job}.requeue").touch()


def sacct(*arguments: str) -> None:
    """Print the state of all jobs. submitit asks for it only if a job has left no result."""
    print("JobID|State|NodeList")
    for path in HERE.glob("*.starts"):
        state = "FAILED" if path.with_suffix(".ended").exists() else "RUNNING"
        print(f"{path.stem}|{state}|localhost")


if __name__ == "__main__":
    if sys.argv[1] != "run_job":
        with (HERE / "commands.log").open("a") as log:
            log.write(shlex.join(sys.argv[1:]) + "\n")
    globals()[sys.argv[1]](*sys.argv[2:])
