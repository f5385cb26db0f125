"""Accounting for a Slurm test cluster: MariaDB and slurmdbd in the cluster's folder, on ports of their own."""

from __future__ import annotations

import os
import pwd
import secrets
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.grounds.components import program
from tests.grounds.keeper import Keeper
from tests.grounds.ports import free_ports
from tests.until import until

_START_S = 60.0
_INIT = """\
CREATE DATABASE slurm_acct_db;
CREATE USER slurm@127.0.0.1 IDENTIFIED BY '{password}';
GRANT ALL ON slurm_acct_db.* TO slurm@127.0.0.1;
"""
_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct_db
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
"""
# slurmctld forgets jobs at once, so that only accounting knows them.
_CLUSTER_CONF = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge/socket
MinJobAge=2
"""


def start_accounting(folder: Path, env: Mapping[str, str], keeper: Keeper) -> str:
    """Start both beside a munged that already runs; returns the lines for slurm.conf."""
    port, database_port = free_ports(2)
    password, user = secrets.token_hex(16), pwd.getpwuid(os.geteuid()).pw_name
    data, script = folder / "database", folder / "database.sql"
    options = ["--no-defaults", f"--datadir={data}", f"--user={user}", "--innodb-log-file-size=8M"]
    create = [program("mariadb-install-db"), *options, "--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(create, check=True, capture_output=True)
    _write_private(script, _INIT.format(password=password))
    listening = ["--bind-address=127.0.0.1", f"--port={database_port}", f"--socket={folder}/database.socket"]
    files = [f"--init-file={script}", f"--pid-file={folder}/database.pid"]
    database = [program("mariadbd"), *options, *listening, *files, "--skip-name-resolve"]
    keeper.start(database, env=env, log=folder / "mariadbd.out")
    until(lambda: _answers(database_port), deadline_s=_START_S, awaited="MariaDB to answer")
    host = socket.gethostname().partition(".")[0]
    fields = {"folder": folder, "host": host, "port": port, "user": user, "database_port": database_port}
    _write_private(folder / "slurmdbd.conf", _CONF.format(**fields, password=password))
    keeper.start([program("slurmdbd"), "-D"], env=env, log=folder / "slurmdbd.out")
    until(
        lambda: _answers(port),
        deadline_s=_START_S,
        awaited=lambda: (folder / "slurmdbd.out").read_text("utf-8")[-2000:],
    )
    return _CLUSTER_CONF.format(port=port, folder=folder)


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text, "utf-8")


def _answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0
