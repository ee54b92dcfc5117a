"""A small SPMD trainer: one process a host, a barrier a step, checkpoints as Orbax writes them.

It fails as jax.distributed does: every process dies when a peer dies or registers twice, and waits in
vain, then dies, for peers that never come. Each process writes into the diary whom it met.
"""

import http.client
import json
import os
import signal
import socket
import sys
import threading
import time

WORKER = int(os.environ["TPU_WATCHDOG_WORKER"])
WORKERS = int(os.environ["TPU_WATCHDOG_WORKERS"])
GENERATION = int(os.environ["TPU_WATCHDOG_GENERATION"])
TRY = int(os.environ["TPU_WATCHDOG_TRY"])
# Given by the rig: the folder of diary and orders, the storage, steps between checkpoints, times.
RIG = os.environ["RIG"]
STORE = os.environ["RIG_STORE"]
BASE = os.environ["CHECKPOINT_BASE"].removeprefix("gs://")
EVERY = 10
STEP = float(os.environ["RIG_STEP"])
PATIENCE = float(os.environ["RIG_PATIENCE"])
# All hosts of one machine: an abstract socket is gone with its process, as a port is.
COORDINATOR = "\0" + RIG


NOTICED = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: NOTICED.set())
if os.path.exists(f"{RIG}/slow.{WORKER}"):
    # It ends by SIGKILL alone, when its grace is over.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def diary(**entry):
    entry |= {"generation": GENERATION, "try": TRY, "worker": WORKER, "pid": os.getpid(), "at": time.time()}
    with open(f"{RIG}/diary", "a") as file:
        file.write(json.dumps(entry) + "\n")


def die(text):
    print(f"worker {WORKER}: {text}", file=sys.stderr, flush=True)
    os.abort()


def storage(method, key, body=None):
    host = http.client.HTTPConnection(STORE, timeout=10)
    host.request(method, "/" + key, body)
    answer = host.getresponse()
    data = answer.read()
    if answer.status >= 300:
        raise OSError(f"{method} {key}: {answer.status}")
    return data


def told(what):
    """Whether the rig tells this worker to do something now, once."""
    try:
        os.unlink(f"{RIG}/{what}.{WORKER}")
        return True
    except FileNotFoundError:
        return False


class Coordinator:
    """Worker 0's: registers every process once, and holds the barriers."""

    def __init__(self):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(COORDINATOR)
        self.listener.listen(64)
        self.peers = {}
        self.lock = threading.Condition()
        self.at = {}
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            peer, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(peer,), daemon=True).start()

    def serve(self, peer):
        lines = peer.makefile("r")
        hello = json.loads(lines.readline() or "null")
        if hello is None:
            return
        diary(event="met", peer=hello)
        with self.lock:
            if hello["worker"] in self.peers:
                die(f"Duplicate task registration with task_name={hello['worker']}")
            self.peers[hello["worker"]] = peer
            self.lock.notify_all()
        try:
            for line in lines:
                with self.lock:
                    self.at[hello["worker"]] = int(line)
                    if len(self.at) == WORKERS and len(set(self.at.values())) == 1:
                        self.go_on(line.strip())
        except OSError:
            # A peer that is killed with an answer unread resets the connection: it is dead as well.
            pass
        time.sleep(PATIENCE / 10)
        die(f"Task {hello['worker']} heartbeat timeout. The remote task has failed.")

    def go_on(self, step):
        self.at.clear()
        answer = "end" if os.path.exists(f"{RIG}/end") else step
        for peer in self.peers.values():
            try:
                peer.sendall(f"{answer}\n".encode())
            except OSError:
                pass

    def all_are_there(self):
        with self.lock:
            return self.lock.wait_for(lambda: len(self.peers) == WORKERS, PATIENCE)


def connect():
    ends = time.time() + PATIENCE
    while True:
        peer = socket.socket(socket.AF_UNIX)
        try:
            peer.connect(COORDINATOR)
            return peer
        except OSError:
            if time.time() > ends:
                sys.exit("DEADLINE_EXCEEDED: the coordinator does not answer")
            time.sleep(0.05)


def load():
    path = os.environ["CHECKPOINT_PATH"]
    if not path:
        return 0, 1.0
    saved = json.loads(storage("GET", path.removeprefix("gs://") + "/default/d/0"))
    return saved["step"], saved["loss"]


def save(step, loss):
    where = f"{BASE}/{step}"
    storage("PUT", where + "/default/d/0", json.dumps({"step": step, "loss": loss}))
    storage("PUT", where + "/_CHECKPOINT_METADATA", "{}")
    storage("PUT", where + "/commit_success.txt", "")


def train():
    step, loss = load()
    diary(event="start", step=step)
    if os.path.exists(f"{RIG}/user-error"):
        raise ValueError("Dimensions must be equal, but are 512 and 1024")
    if told("full"):
        sys.exit("XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 49.34G of 32.00G hbm.")
    coordinator = Coordinator() if WORKER == 0 else None
    peer = connect()
    peer.sendall((json.dumps({"worker": WORKER, "generation": GENERATION, "try": TRY}) + "\n").encode())
    if coordinator and not coordinator.all_are_there():
        sys.exit("DEADLINE_EXCEEDED: not all tasks have registered")
    lines = peer.makefile("r")
    while True:
        time.sleep(STEP)
        if told("crash"):
            os.kill(os.getpid(), signal.SIGSEGV)
        if told("busy"):
            sys.exit("TPU initialization failed: open(/dev/vfio/0): Device or resource busy")
        peer.sendall(f"{step + 1}\n".encode())
        answer = lines.readline().strip()
        if answer == "end":
            break
        if answer != str(step + 1):
            die("the JAX distributed service detected fatal errors: another task died")
        step, loss = step + 1, loss * 0.99 + 1 / (step + 7)
        diary(event="step", step=step, loss=loss)
        if WORKER == 0:
            with open(os.environ["TPU_WATCHDOG_PROGRESS"], "a") as file:
                file.write(f"{step}\n")
            if step % EVERY == 0:
                save(step, loss)
            elif NOTICED.is_set():
                # One step later where a regular one falls on the notice: the stories tell them apart.
                NOTICED.clear()
                save(step, loss)
    diary(event="end", step=step)
    if WORKER == 0:
        # As jax.distributed.shutdown: the coordinator is the last to leave.
        time.sleep(PATIENCE / 20)


train()
# The coordinator's threads end with their process.
os._exit(0)
