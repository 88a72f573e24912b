"""A SLURM of one machine with two cores, for as long as tests need it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=1
MessageTimeout=3
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=cpu Nodes={host} Default=YES State=UP
PartitionName=down Nodes={host} State=DOWN
"""
LIMIT_S = 60.0
"""Longest wait for an event, in seconds. Most take one to three, a time limit 30."""


def why_not() -> str:
    """Reason why SLURM cannot run here; empty if it can."""
    missing = [name for name in ("munged", "slurmctld", "slurmd") if shutil.which(name) is None]
    if missing:
        return f"no {', '.join(missing)}: apt-get install slurm-wlm munge"
    return "" if os.getuid() == 0 else "slurmd starts jobs of other users, which needs root"


def output_of(*command: str) -> str:
    """Output of one of SLURM's commands."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@dataclass(slots=True)
class SlurmSite:
    """The controller, the node and the authentication service of a site."""

    folder: Path
    """Folder of its configuration, keys and logs."""
    services: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """Its processes, by the name of their program."""

    def start_controller(self) -> None:
        """Start slurmctld, and wait until it accepts jobs."""
        self.start("slurmctld", "-D")
        self.wait_for(lambda: "idle" in self.nodes() or "mix" in self.nodes())

    def kill_controller(self, number: int = signal.SIGKILL) -> None:
        """Send slurmctld a signal."""
        self.services["slurmctld"].send_signal(number)
        if number == signal.SIGKILL:
            self.services["slurmctld"].wait()

    def start(self, program: str, *options: str) -> None:
        """Start a service, with a log in the folder."""
        with (self.folder / f"{program}.log").open("ab") as log:
            self.services[program] = subprocess.Popen([program, *options], stdout=log, stderr=log)

    def nodes(self) -> str:
        """State of the node; empty without an answer."""
        command = ["sinfo", "--noheader", "--format=%T"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def jobs(self, state: str = "PENDING,RUNNING,COMPLETING") -> list[str]:
        """Numbers of the jobs in one of these states."""
        return output_of("squeue", "--noheader", "--format=%i", f"--states={state}").split()

    def wait_for(self, condition) -> None:
        """Wait until a condition holds."""
        until_s = time.monotonic() + LIMIT_S
        while not condition():
            logs = "".join(path.read_text()[-1000:] for path in self.folder.glob("*.log"))
            assert time.monotonic() < until_s, logs
            time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def slurm_site(folder: Path) -> Iterator[SlurmSite]:
    """Start a site, and set SLURM_CONF for SLURM's commands."""
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(1024))
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            folder=folder,
            host=socket.gethostname().partition(".")[0],
            controller_port=_free_port(),
            node_port=_free_port(),
        )
    )
    site = SlurmSite(folder)
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(configuration)
    try:
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed"}
        places = [f"--{option}={folder}/munge.{end}" for option, end in files.items()]
        site.start("munged", "--foreground", "--force", *places)
        site.wait_for((folder / "munge.socket").exists)
        site.start("slurmd", "-D")
        site.start_controller()
        yield site
        output_of("scancel", "--user=root")
        site.wait_for(lambda: not site.jobs())
    finally:
        for service in site.services.values():
            service.kill()
            service.wait()
        del os.environ["SLURM_CONF"]
        if before is not None:
            os.environ["SLURM_CONF"] = before
