"""Messages of torch's store, rendezvous and elastic agent: how ranks meet. Texts of torch 1.7 to 2.14, in the words of each version."""

from __future__ import annotations

from orchestrator.diagnosis.change import LONGER_TIMEOUT
from orchestrator.diagnosis.signature import Signature, consequence, note, root, symptom

_CRASHES = (
    "killed",
    "segmentation-fault",
    "bus-error",
    "worker-crashed",
    "worker-killed",
    "terminated-first",
    "hidden-failure",
    "slurm-killed",
    "slurm-segfault",
    "slurm-cancelled",
)
_NOT_STARTED = (
    "port-taken",
    "python-error",
    "python-exception",
    "module-not-found",
    "command-not-found",
    "file-not-found",
    "slurm-node-failure",
    "slurm-node-fail",
    "ssh-host-key",
    "ssh-refused-login",
    "ssh-unreachable",
    "no-gpu",
    "no-driver",
    "cuda-oom",
    *_CRASHES,
)
_MET = (
    "collective-timeout",
    "watchdog-stuck",
    "gloo-timeout",
    "nccl-rdma-retry",
    "nccl-peer-closed",
    "nccl-connection-cut",
    "nccl-connection-refused",
    "nccl-no-route",
    "nccl-cuda-error",
    "nccl-system-error",
    "nccl-remote-error",
    "nccl-internal-error",
    "nccl-invalid-usage",
    "cuda-illegal-access",
    "ended-early",
    "eccl-error",
)
"""Symptoms that only ranks show which have met."""
_MEETING = (
    "store-unreachable",
    "clients-missing",
    "store-barrier",
    "unique-id",
    "rendezvous-failed",
    "rendezvous-unreachable",
    "store-connect-timeout",
    "foreign-server",
    "store-name",
)
_ADDRESS = "MASTER_ADDR, or --rdzv-endpoint, must be an address or name of the first node that all nodes reach: not localhost, not a netmask; getent hosts with that name must print the same on all nodes"
_FIREWALL = "open the port between the nodes; a connection that times out is a firewall or a wrong address, one that is refused is a rank 0 that does not listen"


def _more(fewer: str, more: str) -> str:
    """A pattern for two numbers up to 9999 of which the second is larger."""
    same_length = "|".join(
        rf"{digit}\d{{{rest}}}{more}(?P=head)[{digit + 1}-9]\d{{{rest}}}\b" for rest in range(4) for digit in range(9)
    )
    longer = "|".join(rf"\d{{{digits}}}{more}\d{{{digits + 1},}}\b" for digits in range(1, 4))
    return rf"{fewer}(?:(?P<head>\d{{0,3}}?)(?:{same_length})|{longer})"


RENDEZVOUS: tuple[Signature, ...] = (
    symptom("store-unreachable", r"The client socket has (?:timed out after \d+ ?m?s while trying to connect to|failed to connect to any network address of) \(?(?P<address>(?!\d+,)[^,\s]+?)(?:, |:)(?P<port>\d+)\b|TCP client failed to connect/validate to host (?P<address_2>\S+?):(?P<port_2>\d+) - timed out", "network", "the rendezvous at {address}:{port} did not answer: rank 0 has not started or has ended, the address is wrong, or a firewall blocks it",
        "nc -vz {address} {port}: run it on this node", "look at the log of rank 0", _ADDRESS, literal=("The client socket has ", "TCP client failed to connect"),
        follows=(*_NOT_STARTED, "store-address-brackets", "store-numeric-address"),
        sample=("torch.distributed.DistNetworkError: The client socket has timed out after 5000ms while trying to connect to (127.0.0.1, 29513).", "TimeoutError: The client socket has timed out after 900s while trying to connect to (10.0.0.1, 29500).", "[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to 192.0.0.1:1234", "[E socket.cpp:610] [c10d] The client socket has failed to connect to any network address of (n0, 1234).", "[E1108 20:04:34.467 TCPStore.cpp:346] [c10d] TCP client failed to connect/validate to host n0:29500 - timed out (try=31, timeout=1800000ms): Interrupted system call"),
        near="The client socket has connected to [n0]:29513", source="torch 1.12 to 2.14; torch 2.13, run here"),
    root("store-numeric-address", r"The client socket has (?:timed out after \d+ ?m?s while trying to connect to|failed to connect to any network address of) \((?P<address>\d+), (?P<port>\d+)\)", "config", "MASTER_ADDR is {address}, a number and not the name of a node: a script has cut it out of a list such as node[05,06] or a job's name, and it is taken for an address 0.x.y.z",
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1): expands such a list', "a host whose name is a number: write its address instead", literal="The client socket has ", sample=("[E socket.cpp:610] [c10d] The client socket has failed to connect to any network address of (05, 40323).", "The client socket has timed out after 900s while trying to connect to (6841231, 47389)."), near="[E socket.cpp:610] [c10d] The client socket has failed to connect to any network address of (n05, 40323).", source="torch 1.12 to 2.14"),
    symptom("store-connect-timeout", r"connect\(\) timed out\.(?: Original timeout was (?P<ms>\d+) ms)?", "network", "rank 0 did not answer at MASTER_ADDR:MASTER_PORT: it has not started or has ended, the address is wrong, or a firewall blocks it", "nc -vz $MASTER_ADDR $MASTER_PORT: run it on this node while rank 0 waits", "look at the log of rank 0", _ADDRESS, literal="connect() timed out", follows=_NOT_STARTED,
        sample=("RuntimeError: connect() timed out. Original timeout was 1800000 ms.", "RuntimeError: connect() timed out."), near="connect() succeeded", source="torch 1.7 to 1.11"),
    symptom("store-connect-failed", r"The client socket has failed to connect to \[?(?:::ffff:)?(?P<address>[^\]\s]+?)\]?:(?P<port>\d+) \(errno: (?:110|113|101|112|104) - (?P<reason>[^)]+)\)", "network", "this rank could not connect to the rendezvous at {address}:{port} ({reason}): the address is wrong, a firewall or a missing route is in between, or that node is down",
        "getent hosts {address}; ip route get {address}; nc -vz {address} {port}: on this node", _ADDRESS, _FIREWALL, literal="The client socket has failed to connect to", follows=(*_NOT_STARTED, *_MET, *_MEETING, "store-address-brackets", "store-lost", "store-closed", "store-timeout"),
        sample=("[W socket.cpp:663] [c10d] The client socket has failed to connect to [::ffff:255.255.0.0]:29500 (errno: 110 - Connection timed out).", "[W socket.cpp:558] [c10d] The client socket has failed to connect to [n0]:1234 (errno: 113 - No route to host)."),
        near="[W socket.cpp:663] [c10d] The client socket has failed to connect to [n0]:29500 (errno: 97 - Address family not supported by protocol).", source="torch 1.12 to 2.14"),
    note("store-not-yet", r"The client socket has failed to connect to \S+ \(errno: (?:111|99|97) ", "network", "a rank could not connect to the rendezvous at once: rank 0 did not listen yet, or the name has an IPv6 address that is not used", "nothing, if the ranks met afterwards; if the run hangs here: look at the log of rank 0", literal="The client socket has failed to connect to", sample=("[W socket.cpp:436] [c10d] The client socket has failed to connect to [n0]:29500 (errno: 111 - Connection refused).", "[W socket.cpp:601] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99 - Cannot assign requested address)."), near="[W socket.cpp:436] [c10d] The client socket has failed to connect to [n0]:29500 (errno: 110 - Connection timed out).", source="torch 1.12 to 2.14"),
    root("store-address-brackets", r"network addresses of \(\[(?P<address>[0-9a-fA-F:%.\w]+)\], (?P<port>\d+)\) cannot be retrieved", "config", "MASTER_ADDR is the IPv6 address {address} in brackets, which torch takes for a name", "MASTER_ADDR={address}: without the brackets; only URLs and --rdzv-endpoint have them, as in [fd00::1]:29500", literal="network addresses of ([",
        sample="[W socket.cpp:752] [c10d] The IPv6 network addresses of ([2605:340::1540], 59699) cannot be retrieved (gai error: -2 - Name or service not known).", near="The IPv6 network addresses of (n0, 59699) cannot be retrieved (gai error: -2 - Name or service not known).", source="torch 1.12 to 2.14"),
    symptom("store-name", r"The (?:IPv4 )?network addresses of \((?P<address>[^,\[]+), (?P<port>\d+)\) cannot be retrieved \(gai error: (?P<reason>[^)]+)\)", "config", "the name {address} of the rendezvous cannot be resolved on this node", "getent hosts {address}: on this node; add the name to /etc/hosts, or pass the address itself as MASTER_ADDR", literal="network addresses of (", follows=(*_NOT_STARTED, *_MET, "clients-missing", "store-barrier", "unique-id"),
        sample=("[W socket.cpp:601] [c10d] The IPv4 network addresses of (node-7, 29500) cannot be retrieved (gai error: -2 - Name or service not known).", "[W socket.cpp:601] [c10d] The network addresses of (node-7, 29500) cannot be retrieved (gai error: -3 - Temporary failure in name resolution)."), near="The IPv6 network addresses of (n0, 29500) cannot be retrieved (gai error: -2 - Name or service not known).", source="torch 1.12 to 2.14"),
    symptom("clients-missing", r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. (?P<joined>\d+)/(?P<expected>\d+) clients joined", "network", "only {joined} of {expected} ranks or nodes joined the rendezvous",
        "count the ranks that started: a node that never started, or two nodes with the same NODE_RANK", "launch with orch, which numbers the nodes itself", literal="seconds waiting for clients",
        follows=_NOT_STARTED, sample="torch.distributed.DistStoreError: Timed out after 6 seconds waiting for clients. 1/2 clients joined.",
        near="all clients joined after 6 seconds", source="torch 1.10 to 2.14; torch 2.13, run here"),
    symptom("store-barrier", r"(?:Timed out initializing|Waiting in) (?:process group in )?store based barrier (?:on|to initialize process group for) (?:(?:%s|\d+) seconds )?rank: (?P<rank>\d+), (?:for )?key: \S+ \(world_size=(?P<expected>\d+), (?:worker_count|num_workers_joined)=(?P<joined>\d+)", "network", "only {joined} of {expected} ranks came to the rendezvous: the others did not start, failed before it, or cannot reach the store",
        "count the ranks that started on each node, and read the logs of those that are missing; a launcher must start {expected} processes in all", "if a rank is only slow before init_process_group (downloads, data): a longer timeout= of init_process_group", literal="store based barrier", follows=("store-barrier-crowded", *_NOT_STARTED, *_MET),
        sample=("RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1 (world_size=2, worker_count=1, timeout=0:30:00)", "INFO:torch.distributed.distributed_c10d:Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1 (world_size=16, worker_count=8, timeout=0:30:00)", "torch.distributed.DistStoreError: Timed out initializing process group in store based barrier on rank: 3, for key: store_based_barrier_key:2 (world_size=16, num_workers_joined=24, timeout=0:30:00 error=wait timeout after 10ms)", "Waiting in store based barrier to initialize process group for 600 seconds rank: 0, key: store_based_barrier_key:1 (world_size=2, num_workers_joined=1, timeout=0:30:00 error=x)"),
        near="Rank 0: Completed store-based barrier for key:store_based_barrier_key:1 with 2 nodes.", source="torch 1.7 to 2.14"),
    root("store-barrier-crowded", _more(r"store based barrier .*\(world_size=", r", (?:worker_count|num_workers_joined)="), "config", "more ranks came to one rendezvous than belong to it (world_size): each task starts all ranks again, or ranks of an earlier attempt or of another run use the same store",
        "start each rank once: under srun either one task per node with torchrun or mp.spawn, or one task per rank without them", "end what is left of earlier runs (squeue; ps aux | grep python), and take another MASTER_PORT; with init_method=file://… a new file for each run", literal="store based barrier",
        sample=("RuntimeError: Timed out initializing process group in store based barrier on rank: 2, for key: store_based_barrier_key:1 (world_size=2, worker_count=4, timeout=0:30:00)", "Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1 (world_size=16, num_workers_joined=24, timeout=0:30:00)", "Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1 (world_size=8, worker_count=10, timeout=0:30:00)"), near="Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1 (world_size=16, worker_count=8, timeout=0:30:00)", source="torch 1.7 to 2.14; pytorch-distributed#18"),
    symptom("store-lost", r"(?:^|[\]:] )(?:RuntimeError|torch\.distributed\.Dist(?:Network|Store|Backend)?Error): (?:Connection reset by peer|Broken pipe|Connection refused|Connection timed out|No route to host|Socket (?:un\w+ )?closed)", "network", "the connection to the store was lost: rank 0, or torchrun on the first node, has ended, or a firewall cut the connection", "look at the log of rank 0 and of torchrun on the first node: its own error is the cause", literal=("RuntimeError: ", "torch.distributed.Dist"), follows=(*_NOT_STARTED, *_MET, *_MEETING),
        sample=("RuntimeError: Connection reset by peer", "[rank1]: torch.distributed.DistNetworkError: Connection reset by peer", "RuntimeError: Broken pipe", "RuntimeError: Connection refused"), near="RuntimeError: Connection to the database", source="torch 1.4 to 2.14"),
    symptom("store-timeout", r"wait timeout after \d+ms, keys: |DistStoreError: .*[Ss]ocket [Tt]imeout|Store timed out|RuntimeError: Socket Timeout|(?:RuntimeError|DistStoreError): [Ww]ait timeout|[Tt]imeout waiting for key: |barrier timeout after \d+ms, key: |Timed out waiting on barrier on", "network", "another rank did not arrive at the store in time: it has ended, is busy, or never started", "look at the first failing rank; if none failed, at the one whose log ends earliest", "if a rank is only slow: a longer timeout= of init_process_group", literal=("wait timeout after", "ait timeout", "ocket Timeout", "ocket timeout", "Store timed out", "imeout waiting for key", "barrier timeout after", "Timed out waiting on barrier"), follows=(*_NOT_STARTED, *_MET, *_MEETING),
        sample=("torch.distributed.DistStoreError: wait timeout after 2000ms, keys: /default_pg/0//nokey", "RuntimeError: Socket Timeout", "RuntimeError: Wait timeout", "RuntimeError: Timeout waiting for key: default_pg/0/0 after 1800000 ms", "torch.distributed.DistStoreError: Socket Timeout"), near="wait finished after 2000ms", change=LONGER_TIMEOUT, source="torch 1.7 to 2.14; torch 2.13, run here"),
    symptom("store-closed", r"[Ff]ailed to recv, got 0 bytes|Failed to send, sent 0 bytes|recvValueWithTimeout failed|recvValue failed|recvVector failed|sendBytes failed|TCPStore server has shut down too early|Broken pipe \[?.*TCPStore", "network", "the process that hosts the store has ended: rank 0, or torchrun on the first node", "look at the log of rank 0 and of torchrun on the first node", literal=("ailed to recv, got 0 bytes", "Failed to send, sent 0 bytes", "recvValueWithTimeout failed", "recvValue failed", "recvVector failed", "sendBytes failed", "shut down too early", "TCPStore"), follows=(*_NOT_STARTED, *_MET, *_MEETING, "gloo-closed", "store-lost", "store-timeout", "exited-1", "child-failed"),
        sample=("recvValueWithTimeout failed on SocketImpl(fd=3): Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?", '[rank3]:[W ProcessGroupNCCL.cpp:1250] [PG 0 Rank 3] Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: failed to recv, got 0 bytes', "[W1128 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=64, addr=[n0]:43694, remote=[n0]:29500): failed to recv, got 0 bytes"), near="received 0 bytes", source="torch 2.1 to 2.14"),
    # torchrun
    symptom("rendezvous-failed", r"RendezvousTimeoutError", "network", "the nodes of torchrun did not meet in time: fewer of them started than --nnodes says, or they differ in --rdzv-id or --rdzv-endpoint",
        "start as many nodes as --nnodes says, all with the same --rdzv-id and --rdzv-endpoint; without --rdzv-id some versions of torch take a random one on each node", "nc -vz with host and port of --rdzv-endpoint: run it on each node", "--rdzv-conf join_timeout=1800: if the nodes only start at different times", literal="RendezvousTimeoutError", follows=_NOT_STARTED,
        sample="torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", near="Rendezvous complete for workers", source="torch 1.9 to 2.14"),
    symptom("rendezvous-unreachable", r"(?<!of type )RendezvousConnectionError|The connection to (?:etcd|the C10d store) has failed", "network", "torchrun of this node did not meet the others: the endpoint of the rendezvous cannot be reached, or its host has ended",
        "nc -vz with host and port of --rdzv-endpoint: run it on each node", _ADDRESS, "look at the log of torchrun on the node of the endpoint: it must run first and last", literal=("RendezvousConnectionError", "The connection to "), follows=(*_NOT_STARTED, *_MET, "store-unreachable", "clients-missing", "exited-1", "child-failed"),
        sample=("torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.", "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to etcd has failed. See inner exception for details."), near="Rendezvous complete for workers", source="torch 1.9 to 2.14"),
    symptom("rendezvous-closed", r"RendezvousClosedError|Rendezvous for run_id=\S+ was observed to be closed", "network", "another agent of torchrun has closed the rendezvous: the workers on that node failed first, or it was stopped, so this node cannot join again", "look at the node whose workers failed first: the earliest `failed (exitcode:` of all nodes; its own error is the cause", "a fresh start needs another --rdzv-id, and all nodes", literal=("RendezvousClosedError", "was observed to be closed"), follows=(*_NOT_STARTED, *_MET), retry="retry",
        sample=("torch.distributed.elastic.rendezvous.api.RendezvousClosedError", "Rendezvous for run_id=default was observed to be closed"), near="Rendezvous complete for workers", source="torch 1.9 to 2.14"),
    consequence("rendezvous-left", r"RendezvousGracefulExitError|Rendezvous gracefully exited|has failed to (?:send a keep-alive heartbeat to|shutdown) the rendezvous|RendezvousStateError|Error waiting on exit barrier", "network", "this node lost the rendezvous of torchrun, as its host or another node has ended", "look at the first node that failed", literal=("RendezvousGracefulExitError", "Rendezvous gracefully exited", "keep-alive heartbeat", "has failed to shutdown", "RendezvousStateError", "Error waiting on exit barrier"),
        sample=("torch.distributed.elastic.rendezvous.api.RendezvousGracefulExitError: The node 'n1_12_0' has already exited", "The node 'n1_3402_0' has failed to send a keep-alive heartbeat to the rendezvous 'job' due to an error of type RendezvousConnectionError.", "The node 'n1_3402_0' has failed to shutdown the rendezvous 'none' due to an error of type RendezvousConnectionError.", "Error waiting on exit barrier. Elapsed: 300.1 seconds"), near="sent a heartbeat to the rendezvous", source="torch 1.9 to 2.14"),
    root("rendezvous-option", r"The (?:hostname|port number) of the rendezvous endpoint '(?P<endpoint>[^']*)' must be|(?:Endpoint is missing in endpoint|Port is absent in endpoint)|Try add --(?:node[-_]rank|master[-_]port)|The rendezvous backend '[^']*' is not registered|The m(?:ax|in)imum number of (?:rendezvous )?nodes \([^)]*\) must be|Unsupported nproc_per_node value|The rendezvous configuration (?:option|string)|The run id must be a non-empty string", "config", "an option of torchrun is missing or wrong, and the message names it", "torchrun --nnodes=N --nproc-per-node=M --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 --rdzv-id=JOB: the form that fits all nodes; an empty variable in the command gives this error, too", "or orch ssh-launch, which passes all of it", literal=("The hostname of the rendezvous", "The port number of the rendezvous", "in endpoint", "Try add --", "The rendezvous backend", "imum number of", "Unsupported nproc_per_node", "The rendezvous configuration", "The run id must be"),
        sample=("ValueError: The port number of the rendezvous endpoint 'n0:http' must be an integer between 0 and 65536.", "ValueError: The hostname of the rendezvous endpoint ':29500' must be a dot-separated list of labels, an IPv4 address, or an IPv6 address.", "ValueError: Endpoint is missing in endpoint. Try to add --master-addr and --master-port", "ValueError: Unsupported nproc_per_node value: 8gpus", "ValueError: The rendezvous backend 'c10' is not registered. Did you forget to call `register`?"), near="The rendezvous endpoint is n0:29500", source="torch 1.9 to 2.14"),
    note("rendezvous-random-id", r"config has no run_id, generated a random run_id", "config", "no --rdzv-id was given, so each node made its own, and nodes with different ids do not meet", "--rdzv-id=JOB: the same on all nodes", literal="config has no run_id", sample="WARNING:torch.distributed.launcher.api:config has no run_id, generated a random run_id: 1745806", near="run_id: job", source="torch 1.9 to 2.14"),
    root("store-open-files", r"The server socket on \S+ has failed to accept a connection \(errno: 24", "config", "the limit of open files is too low for the connections of all ranks to the store", "ulimit -n 1048576: before the program starts on the node of rank 0, in setup: of the inventory or in the script", literal="has failed to accept a connection", sample="[W socket.cpp:436] [c10d] The server socket on [::]:29500 has failed to accept a connection (errno: 24 - Too many open files).", near="The server socket on [::]:29500 has accepted a connection from [n1]:4711.", source="torch 1.12 to 2.14"),
    root("store-libuv", r"use_libuv was requested but PyTorch was (?:build|built) without libuv", "config", "this build of torch has no libuv, which the store is to use", "USE_LIBUV=0: in the environment of torchrun and of the program", literal="use_libuv was requested", sample="RuntimeError: use_libuv was requested but PyTorch was build without libuv support", near="use_libuv : True", source="torch 2.4 to 2.14"),
    root("foreign-server", r"Ping failed, invalid value returned from server\. Expected: \d+, Got: (?P<value>\d+)", "config", "another program answers at the address and port of the rendezvous; the value 1347703880 is `HTTP`, as of a proxy",
        "ss -ltnp: shows on the head which process has the port", "set another MASTER_PORT; unset http_proxy, or add the nodes to no_proxy", literal="Ping failed, invalid value", sample="Ping failed, invalid value returned from server. Expected: 32186, Got: 1347703880", near="Ping succeeded", source="torch 2.4 to 2.14; torch 2.13, run here"),
    root("no-rendezvous-variables", r"Error initializing torch\.distributed using env:// rendezvous: environment variable (?P<variable>\w+) expected, but not set", "config", "the program was started without {variable}, which a launcher sets for every rank",
        "start it by a launcher: orch ssh-launch or torchrun before the script and its arguments", literal="using env:// rendezvous: environment variable", sample="ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable MASTER_ADDR expected, but not set", near="using env:// rendezvous: all variables are set", source="torch 1.0 to 2.14; torch 2.13, run here"),
    root("no-rank-variables", r"Unable to determine rank and size from environment variables|(?:rank|world_size) parameter missing|Error initializing torch\.distributed using \w+:// rendezvous: (?:rank|world size) parameter missing", "config", "the program was started without RANK and WORLD_SIZE, the number of the rank and of all ranks, which a launcher sets", "start it by a launcher: orch ssh-launch or torchrun before the script and its arguments", literal=("Unable to determine rank and size", "parameter missing"), sample=("Unable to determine rank and size from environment variables. Please set TORCHCOMM_RANK and TORCHCOMM_SIZE", "ValueError: Error initializing torch.distributed using tcp:// rendezvous: rank parameter missing"), near="rank and size are known", source="torch 1.0 to 2.14"),
    root("group-not-initialised", r"Default process group (?:has not been|is not) initialized", "code", "the program calls a function of torch.distributed before init_process_group, or after destroy_process_group", "start it by a launcher (torchrun, orch ssh-launch; --launcher pytorch or slurm of OpenMMLab), and call torch.distributed.init_process_group() first on every rank", "on one card BN in place of SyncBN, and `if torch.distributed.is_initialized()` around barriers", literal=("Default process group has not been", "Default process group "), sample=("RuntimeError: Default process group has not been initialized, please make sure to call init_process_group.", "ValueError: Default process group has not been initialized, please make sure to call init_process_group.", "AssertionError: Default process group is not initialized"), near="Default process group is initialized", source="torch 1.0 to 2.14", follows=("no-gpu", "port-taken")),
    root("group-initialised-twice", r"trying to initialize the default process group twice", "code", "the program joins its ranks twice: it calls init_process_group itself, and a library such as DeepSpeed, MMEngine or accelerate does, too", "guard the call: if not torch.distributed.is_initialized(): …", literal="default process group twice", sample=("RuntimeError: trying to initialize the default process group twice!", "ValueError: trying to initialize the default process group twice!"), near="initialize the default process group", source="torch 1.0 to 2.14"),
)  # fmt: skip
