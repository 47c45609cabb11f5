"""A program that stands in for a vLLM engine: its HTTP surface, its log lines, and its bad habits.

Started like the engine itself, `python -m tests.fakes.fake_engine --model ... --port ...`; flags that
it does not know are taken without a word. Bad habits are asked for by `--fake-...` flags, so a profile
can carry them: `{"fake-start-seconds": 2}`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import select
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

STARTED = time.time()
FORGET = "/tierdeck/forget-device-cache"
BLOCK_TOKENS = 16


class State:
    """What the metrics tell."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.lock = threading.Lock()
        self.running = 0
        self.waiting = 0
        self.core: Core | None = None
        self.prompt_tokens = 0
        self.block_tokens = 0
        """Of prompts that fill a block: half of them hit, a quarter in the host tier."""
        self.generation_tokens = 0
        self.forgot = False
        """Whether the device's cache was emptied: what comes now comes from the host."""

    @property
    def keeps_nothing(self) -> bool:
        return bool(self.options.fake_canary_fault == "no-hits")

    def add(self, *, running: int = 0, waiting: int = 0, prompt: int = 0, generated: int = 0) -> None:
        with self.lock:
            self.running += running
            self.waiting += waiting
            self.prompt_tokens += prompt
            self.block_tokens += prompt if prompt >= BLOCK_TOKENS else 0
            self.generation_tokens += generated

    def metrics(self) -> str:
        model = f'{{model_name="{self.options.served_model_name}",engine="0"}}'
        values = {
            "vllm:num_requests_running": ("gauge", self.running),
            "vllm:num_requests_waiting": ("gauge", self.waiting),
            "vllm:kv_cache_usage_perc": ("gauge", 0.25),
            "vllm:prompt_tokens_total": ("counter", self.prompt_tokens),
            "vllm:generation_tokens_total": ("counter", self.generation_tokens),
            "vllm:prefix_cache_queries_total": ("counter", self.prompt_tokens),
            "vllm:prefix_cache_hits_total": ("counter", self.block_tokens // 2),
            "vllm:external_prefix_cache_queries_total": ("counter", self.block_tokens // 2),
            "vllm:external_prefix_cache_hits_total": ("counter", 0 if self.keeps_nothing else self.block_tokens // 4),
        }
        lines = []
        for name, (kind, value) in values.items():
            lines += [f"# TYPE {name.removesuffix('_total')} {kind}", f"{name}{model} {float(value)}"]
        lines += ["# TYPE vllm:cache_config_info gauge", 'vllm:cache_config_info{block_size="16",engine="0"} 1.0']
        lines += ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {STARTED}"]
        return "\n".join(lines) + "\n"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._send(200, self.state.metrics().encode(), "text/plain; version=0.0.4")
        elif self.path == "/v1/models":
            name = self.state.options.served_model_name
            model = {"id": name, "object": "model", "owned_by": "fake", "max_model_len": 4096}
            self._json(200, {"object": "list", "data": [model]})
        elif self.path in {"/health", "/version"}:
            self._send(200, b"", "text/plain")
        else:
            self._json(404, {"error": {"message": "Not Found", "type": "NotFoundError", "code": 404}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.path == FORGET and self.headers.get("x-tierdeck-marker") == os.environ.get("TIERDECK_ENGINE_MARKER"):
            self.state.forgot = True
            self._json(200, {"success": True})
            return
        chat = self.path == "/v1/chat/completions"
        if not chat and self.path != "/v1/completions":
            self._json(404, {"error": {"message": "Not Found", "type": "NotFoundError", "code": 404}})
            return
        self._wait_in_line()
        self.state.add(running=1, prompt=len(str(body.get("prompt") or body.get("messages"))))
        try:
            self._complete(body, chat)
        finally:
            self.state.add(running=-1)

    def _wait_in_line(self) -> None:
        """What a request meets before it runs: a core that may be stopped, a scheduler that may be stuck or deaf."""
        if self.state.core is not None:
            self.state.core.ask()
        _while_there(self.state.options.fake_deaf)
        self.state.add(waiting=1)
        _while_there(self.state.options.fake_stuck)
        self.state.add(waiting=-1)

    def _complete(self, body: dict[str, Any], chat: bool) -> None:
        options = self.state.options
        if options.fake_hang_completions:
            threading.Event().wait()
        count = int(body.get("max_tokens") or 16)
        if body.get("stream"):
            self._stream(count, chat)
            return
        time.sleep(options.fake_token_seconds * count)
        self.state.add(generated=count)
        usage = {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": count + 1}
        frame = _frame(chat, "x" * count, final=True)
        if body.get("logprobs") and not chat:
            frame["choices"][0]["logprobs"] = self._logprobs(count)
        self._json(200, {**frame, "usage": usage})

    def _logprobs(self, count: int) -> dict[str, Any]:
        is_wrong = self.state.forgot and self.state.options.fake_canary_fault == "other-tokens"
        token = "token_id:9" if is_wrong else "token_id:1"
        return {"tokens": [token] * count, "top_logprobs": [{token: -0.5}] * count}

    def _stream(self, count: int, chat: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for index in range(count):
            time.sleep(self.state.options.fake_token_seconds)
            self.state.add(generated=1)
            frame = json.dumps(_frame(chat, "x", final=index == count - 1, delta=True))
            self._chunk(f"data: {frame}\n\n".encode())
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _json(self, status: int, body: dict[str, Any]) -> None:
        self._send(status, json.dumps(body).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        print(f'INFO:     127.0.0.1:1 - "{args[0]}" {args[1]}' if len(args) > 1 else format % args, flush=True)


class Core:
    """A process of its own that every request needs, as vLLM's engine core, with a worker below it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.mine, theirs = socket.socketpair()
        if not os.fork():
            self.mine.close()
            _rename(b"VLLM::EngineCor")
            _serve_as_core(theirs)
        theirs.close()

    def ask(self) -> None:
        """Wait for it; when it is gone, the front end ends too."""
        with self.lock:
            self.mine.sendall(b"?")
            self.mine.recv(1)

    def watch(self) -> None:
        """In a thread of its own: the end of the core is the end of the front end."""
        poll = select.poll()
        poll.register(self.mine, select.POLLRDHUP)
        poll.poll()
        say("AsyncLLM output_handler failed.", "ERROR")
        say("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", "ERROR")
        os._exit(1)


def _serve_as_core(asked: socket.socket) -> None:
    worker = os.fork()
    if not worker:
        asked.close()
        _rename(b"VLLM::Worker_TP")
        signal.pause()
        os._exit(0)
    threading.Thread(target=_end_with, args=(worker,), daemon=True).start()
    while asked.recv(1):
        asked.sendall(b"!")
    signal.pause()  # without its front end vLLM's core goes on, too


def _end_with(worker: int) -> None:
    _, status = os.waitpid(worker, 0)
    say(f"Worker proc VllmWorker-0 died unexpectedly (exit code: {os.waitstatus_to_exitcode(status)})", "ERROR")
    os._exit(1)


def _rename(name: bytes) -> None:
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)


def _while_there(path: str | None) -> None:
    while path is not None and Path(path).exists():
        time.sleep(0.02)


def _frame(chat: bool, text: str, *, final: bool, delta: bool = False) -> dict[str, Any]:
    reason = "length" if final else None
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
    if chat:
        choice["delta" if delta else "message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    kind = "chat.completion" if chat else "text_completion"
    return {"id": "fake-1", "object": kind, "created": 1, "model": "fake", "choices": [choice]}


def say(text: str, level: str = "INFO") -> None:
    stamp = time.strftime("%m-%d %H:%M:%S")
    print(f"(APIServer pid={os.getpid()}) {level} {stamp} [fake_engine.py:1] {text}", flush=True)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name", default="fake")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--fake-start-seconds", type=float, default=0.0)
    parser.add_argument("--fake-die-with", default=None, help="while loading: print this and exit with 1")
    parser.add_argument("--fake-die-once", default=None, help="a path: die while it does not exist, and make it")
    parser.add_argument("--fake-exit-after", type=float, default=None, help="seconds after it was ready")
    parser.add_argument("--fake-exit-code", type=int, default=1)
    parser.add_argument("--fake-ignore-sigterm", action="store_true")
    parser.add_argument("--fake-orphan", action="store_true", help="a renamed child in a session of its own")
    parser.add_argument("--fake-hang-completions", action="store_true")
    parser.add_argument("--fake-core", action="store_true", help="a core and a worker in processes of their own")
    parser.add_argument("--fake-stuck", default=None, help="a path: while it exists, requests wait and none runs")
    parser.add_argument("--fake-deaf", default=None, help="a path: while it exists, requests are not even counted")
    parser.add_argument("--fake-token-seconds", type=float, default=0.0)
    parser.add_argument("--fake-progress-seconds", type=float, default=0.0, help="progress bars instead of lines")
    parser.add_argument("--fake-flood-lines", type=int, default=0)
    parser.add_argument("--fake-say", default=None, help="whenever SIGUSR1 comes")
    parser.add_argument("--fake-shared-memory", type=int, default=0, help="bytes of a psm_ file")
    parser.add_argument("--fake-canary-fault", choices=("no-hits", "other-tokens"), default=None)
    parser.add_argument("--fake-dump", default=None, help="a path: write sys.argv and the environment there")
    return parser.parse_known_args(arguments)[0]


def spawn_orphan(shared_bytes: int) -> None:
    """Fork twice, leave the session, take another name: nothing but the environment tells whose it is."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    _rename(b"innocent")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    keep = hold_shared_memory(shared_bytes) if shared_bytes else None
    while True:
        time.sleep(3600)
        del keep


def hold_shared_memory(size: int) -> mmap.mmap:
    path = Path(f"/dev/shm/psm_fake{os.getpid():x}")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.posix_fallocate(descriptor, 0, size)
    mapped = mmap.mmap(descriptor, size)
    os.close(descriptor)
    return mapped


def load(options: argparse.Namespace) -> None:
    say("vLLM API server version fake")
    if options.fake_die_once and not Path(options.fake_die_once).exists():
        Path(options.fake_die_once).touch()
        sys.exit(options.fake_exit_code)
    say("Starting to load model fake...")
    until = time.monotonic() + options.fake_progress_seconds
    while time.monotonic() < until:
        share = 100 - int(100 * (until - time.monotonic()) / options.fake_progress_seconds)
        print(f"\rLoading safetensors checkpoint shards: {share:3d}%|##", end="", file=sys.stderr, flush=True)
        time.sleep(0.05)
    time.sleep(options.fake_start_seconds)
    say("GPU KV cache size: 16,384 tokens")
    if options.fake_die_with is not None:
        say("about to die", "ERROR")
        print(options.fake_die_with, file=sys.stderr, flush=True)
        sys.exit(options.fake_exit_code)
    for index in range(options.fake_flood_lines):
        print(f"flood {index} " + "x" * 200)


def main() -> None:
    options = parse(sys.argv[1:])
    if options.fake_dump:
        dump = {"argv": sys.argv, "environment": dict(os.environ)}
        Path(options.fake_dump).write_text(json.dumps(dump))
    if options.fake_ignore_sigterm:
        signal.signal(signal.SIGTERM, lambda *_: say("SIGTERM ignored"))
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    keep = hold_shared_memory(options.fake_shared_memory) if options.fake_shared_memory else None
    if options.fake_orphan:
        spawn_orphan(options.fake_shared_memory)
    Handler.state = State(options)
    if options.fake_core:
        Handler.state.core = core = Core()
        threading.Thread(target=core.watch, daemon=True).start()
    server = ThreadingHTTPServer((options.host, options.port), Handler, bind_and_activate=False)
    server.allow_reuse_address = True
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.server_bind()  # like the engine: the port is taken before the weights are loaded
    load(options)
    server.server_activate()
    say("Application startup complete.")
    signal.signal(signal.SIGUSR1, lambda *_: print(options.fake_say, flush=True))
    if options.fake_exit_after is not None:
        threading.Timer(options.fake_exit_after, lambda: os._exit(options.fake_exit_code)).start()
    server.serve_forever()
    del keep


if __name__ == "__main__":
    main()
