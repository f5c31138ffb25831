"""The simulated host: stages and lines of a start, memory on GPUs, signals, what is left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.fakes.sim_server import READY, SimServer, sim_server, until

from kvctl.core.domain.gpus.devices import GpuDevice
from kvctl.core.sim.folder import HostFolder, start_ticks
from kvctl.core.sim.gpus import SimulatedGpus, gpu_uuid
from kvctl.core.sim.memory import LEFTOVER_MIB, MIB, plan_rank
from kvctl.core.sim.server import main as server_main

BF16 = ("--tp-size", "8", "--mem-fraction-static", "0.88")
STAGES = (
    "server_args=ServerArgs(",
    "Init torch distributed begin.",
    "Init torch distributed ends. elapsed=",
    "Load weight begin. avail mem=",
    "Loading safetensors checkpoint shards:",
    "Load weight end. elapsed=",
    "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 159277",
    "Memory pool end. avail mem=",
    "Capture target prefill CUDA graph begin.",
    "Capture target prefill CUDA graph end.",
    "Capture target decode CUDA graph begin.",
    "Capture target decode CUDA graph end.",
    "max_total_num_tokens=159277,",
    "Uvicorn running on http://127.0.0.1:",
    READY,
)
STAMP = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( TP0)?\] ")
DECODE = re.compile(
    r"Decode batch, #running-req: \d+, #token: \d+, token usage: \d\.\d\d, cuda graph: True, "
    r"gen throughput \(token/s\): \d+\.\d\d, #queue-req: \d+$"
)
PREFILL = re.compile(
    r"Prefill batch, #new-seq: \d+, #new-token: \d+, #cached-token: \d+, token usage: \d\.\d\d, "
    r"#running-req: \d+, #queue-req: \d+, #pending-token: \d+, cuda graph: True, "
    r"input throughput \(token/s\): \d+\.\d\d$"
)
RETRACTION = re.compile(
    r"KV cache pool is full\. Retract requests\. #retracted_reqs: \d+, #new_tokens_gained: \d+, "
    r"#new_token_ratio: \d\.\d{4} -> \d\.\d{4}$"
)
RECORDED_LOG = Path(__file__).parent.parent / "data" / "sglang-0.5.23" / "server.log"


def devices(server: SimServer) -> tuple[GpuDevice, ...]:
    return SimulatedGpus(server.host_dir).read(time.monotonic()).devices


def used_mib(server: SimServer, gpu: int) -> int:
    return int(devices(server)[gpu].memory_used_bytes.value or 0) // MIB


def titles(server: SimServer) -> list[str]:
    pids = [process.pid for device in devices(server) for process in device.processes]
    return [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode() for pid in pids]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[1])


# -- start ---------------------------------------------------------------------------------


def test_a_start_passes_every_stage_in_order_and_holds_memory_on_eight_gpus(
    tmp_path: Path,
) -> None:
    with sim_server(tmp_path, *BF16) as server:
        at = [server.log().index(stage) for stage in STAGES]
        assert at == sorted(at)
        assert "\r" in server.log_path.read_bytes().decode()
        headroom_mib = plan_rank(0.88, "auto", 8, None).after_graphs * 1024
        for device in devices(server):
            free = int(device.memory_total_bytes.value or 0) - int(
                device.memory_used_bytes.value or 0
            )
            assert free / MIB == pytest.approx(headroom_mib, abs=8)
            assert len(device.processes) == 1
        assert titles(server) == [f"sglang::scheduler_TP{number}" for number in range(8)]


def test_memory_grows_in_stages_while_a_server_loads(tmp_path: Path) -> None:
    with sim_server(tmp_path, *BF16, speed=25.0, ready=False) as server:
        seen: list[int] = []
        while READY not in server.log():
            seen.append(used_mib(server, 3))
            assert server.process.poll() is None
            time.sleep(0.01)
    assert seen == sorted(seen)
    assert seen[0] == 4
    assert len(set(seen)) > 8


def test_the_port_refuses_connections_until_the_schedulers_are_loaded(tmp_path: Path) -> None:
    with sim_server(tmp_path, *BF16, ready=False) as server:
        with pytest.raises(httpx.ConnectError):
            server.http.get("/health")
        server.wait_ready()
        assert server.http.get("/health").status_code == 200


def test_wrong_flags_end_in_status_2_with_argparse_s_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cases = {
        ("--mem-fraction-statik", "0.8"): "unrecognized arguments: --mem-fraction-statik 0.8",
        ("--disable-c",): "ambiguous option: --disable-c could match",
        ("--load-format", "nonsense"): "invalid choice: 'nonsense' (choose from",
        ("--tp-size", "two"): "argument --tp-size: invalid int value: 'two'",
    }
    for flags, text in cases.items():
        assert server_main(["--model-path", "m", *flags], {}) == 2
        assert text in capsys.readouterr().err.splitlines()[-1]


def test_a_server_without_metrics_has_no_metrics_page_and_no_throughput(tmp_path: Path) -> None:
    with sim_server(tmp_path, *BF16) as server:
        answer = server.http.get("/metrics")
        assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})
        assert server.http.get("/v1/loads").json()["loads"][0]["gen_throughput"] == 0.0


def test_a_port_in_use_is_found_after_the_load_and_ends_in_status_3(tmp_path: Path) -> None:
    with sim_server(tmp_path, *BF16) as first:
        (tmp_path / "second").mkdir()
        with sim_server(tmp_path / "second", *BF16, port=first.port, ready=False) as second:
            assert second.process.wait(20) == 3
            assert second.lines("[Errno 98] error while attempting to bind on address")
            assert second.lines(READY)  # its warm-up reached the first server
        assert first.http.get("/model_info").status_code == 200


def test_weights_that_leave_no_room_end_the_start(tmp_path: Path) -> None:
    with sim_server(tmp_path, "--tp-size", "4", ready=False) as server:
        assert server.process.wait(20) == -signal.SIGKILL
        assert server.lines("Loaded weights leave no GPU memory for the KV cache under")
        assert server.lines("Received sigquit from a child process.")
        until("memory is back", lambda: used_mib(server, 0) == 4)


def test_a_taken_gpu_ends_the_start_as_unbalanced(tmp_path: Path) -> None:
    folder = HostFolder(tmp_path / "host")
    holder_pid, ticks = os.getpid(), start_ticks(os.getpid())
    assert ticks is not None
    record = {"pid": holder_pid, "start_ticks": ticks, "gpu": 4, "bytes": LEFTOVER_MIB * MIB}
    (tmp_path / "host/holders").mkdir(parents=True)
    path = tmp_path / f"host/holders/{holder_pid}.json"
    path.write_text(json.dumps({**record, "title": "x"}), "utf-8")
    assert [holder.gpu for holder in folder.holders()] == [4]
    with sim_server(tmp_path, *BF16, ready=False) as server:
        assert server.process.wait(20) == -signal.SIGKILL
        assert server.lines("The memory capacity is unbalanced. Some GPUs may be occupied")


def test_gpus_named_by_uuid_are_the_ones_that_are_used(tmp_path: Path) -> None:
    chosen = {"CUDA_VISIBLE_DEVICES": ",".join(gpu_uuid(gpu) for gpu in range(7, -1, -1))}
    with sim_server(tmp_path, *BF16, env=chosen) as server:
        assert titles(server)[0] == "sglang::scheduler_TP7"


# -- lines under load ----------------------------------------------------------------------


def test_lines_under_pressure_have_the_shapes_of_a_real_log(tmp_path: Path) -> None:
    flags = ("--max-total-tokens", "6000", "--schedule-conservativeness", "0.1", "--tp-size", "8")
    with sim_server(tmp_path, *flags, speed=200.0) as server, ThreadPoolExecutor(30) as pool:
        body = {"sampling_params": {"max_new_tokens": 1_500}}

        def ask(number: int) -> int:
            ids = server.ids("[B2]", number)
            reply = server.http.post("/generate", json={**body, "input_ids": ids})
            return reply.status_code

        assert set(pool.map(ask, range(30))) == {200}
        for word, shape in (
            ("Decode batch", DECODE),
            ("Prefill batch", PREFILL),
            ("Retract requests", RETRACTION),
        ):
            lines = server.lines(word)
            assert lines, word
            for line in lines:
                assert STAMP.match(line), line
                assert shape.search(line), line


@pytest.mark.parametrize("shape", [DECODE, PREFILL, RETRACTION])
def test_the_shapes_are_those_of_the_recorded_log(shape: re.Pattern[str]) -> None:
    text = RECORDED_LOG.read_text("utf-8").replace("cpu graph: False", "cuda graph: True")
    assert any(shape.search(line) for line in text.splitlines())


def test_the_queue_limit_answers_503(tmp_path: Path) -> None:
    flags = ("--max-total-tokens", "5000", "--max-queued-requests", "1", *BF16)
    with sim_server(tmp_path, *flags) as server, ThreadPoolExecutor(8) as pool:
        sampling = {"max_new_tokens": 4_000, "ignore_eos": True}

        def ask(number: int) -> httpx.Response:
            body = {"input_ids": server.ids(number=number), "sampling_params": sampling}
            return server.http.post("/generate", json=body)

        answers = list(pool.map(ask, range(8)))
        refused = [answer for answer in answers if answer.status_code == 503]
        assert refused
        expected = json.loads(
            (RECORDED_LOG.parent / "live/generate_queue_full_503.json").read_text("utf-8")
        )
        assert refused[0].json() == expected


# -- ends ----------------------------------------------------------------------------------


def test_sigterm_lets_running_requests_end_and_serves_what_still_comes(tmp_path: Path) -> None:
    with sim_server(tmp_path, *BF16, "--enable-metrics") as server, ThreadPoolExecutor(8) as pool:
        body = {"sampling_params": {"max_new_tokens": 2_000, "ignore_eos": True}}

        def ask(number: int) -> httpx.Response:
            ids = server.ids(number=number)
            return server.http.post("/generate", json={**body, "input_ids": ids})

        running = [pool.submit(ask, number) for number in range(4)]
        until(
            "four running",
            lambda: server.http.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 4,
        )
        server.process.send_signal(signal.SIGTERM)
        until("draining", lambda: bool(server.lines("SIGTERM received.")))
        assert server.http.get("/ready").status_code == 503
        assert server.http.get("/health").status_code == 503
        assert ask(9).status_code == 200
        assert [future.result().status_code for future in running] == [200] * 4
        assert server.process.wait(20) == 0
        assert server.lines("Gracefully exiting... Remaining number of requests")
        assert all(device.processes == () for device in devices(server))


def test_sigkill_of_the_main_process_frees_every_gpu(tmp_path: Path) -> None:
    with sim_server(tmp_path, *BF16) as server:
        server.process.kill()
        server.process.wait()
        until("all free", lambda: {used_mib(server, gpu) for gpu in range(8)} == {4})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_on_command_the_scheduler_of_gpu_4_is_left_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    with sim_server(tmp_path, *BF16) as server:
        HostFolder(server.host_dir).ask_for_leftover(4)
        until("taken", lambda: not (server.host_dir / "leave-leftover").exists())
        until("put in", lambda: used_mib(server, 4) == LEFTOVER_MIB + 4)
        server.process.send_signal(number)
        server.process.wait(20)
        until("others free", lambda: sum(used_mib(server, gpu) for gpu in range(8)) < 94_000)
        assert used_mib(server, 4) == LEFTOVER_MIB + 4
        (left,) = devices(server)[4].processes
        try:
            assert titles(server) == ["sglang::scheduler_TP4"]
            assert parent_of(left.pid) != server.process.pid
            os.kill(left.pid, signal.SIGTERM)
            ignored = int(
                re.search(  # type: ignore[union-attr]
                    r"SigIgn:\s*([0-9a-f]+)", Path(f"/proc/{left.pid}/status").read_text("utf-8")
                ).group(1),
                16,
            )
            assert ignored & (1 << (signal.SIGTERM - 1))
            assert used_mib(server, 4) == LEFTOVER_MIB + 4
        finally:
            os.kill(left.pid, signal.SIGKILL)
        until("freed", lambda: used_mib(server, 4) == 4)


def test_a_killed_scheduler_takes_the_server_with_it(tmp_path: Path) -> None:
    quick = {"SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0"}
    with sim_server(tmp_path, *BF16, env=quick) as server:
        os.kill(devices(server)[2].processes[0].pid, signal.SIGKILL)
        assert server.process.wait(20) == -signal.SIGKILL
        assert server.lines("Subprocess scheduler_2 (pid=")
        assert server.lines("SIGQUIT received. signum=3")
        until("all free", lambda: {used_mib(server, gpu) for gpu in range(8)} == {4})


def test_sigterm_while_it_loads_ends_it_at_once(tmp_path: Path) -> None:
    with sim_server(tmp_path, *BF16, speed=20.0, ready=False) as server:
        until("loading", lambda: bool(server.lines("Load weight begin")))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == -signal.SIGTERM
        until("all free", lambda: {used_mib(server, gpu) for gpu in range(8)} == {4})


# -- devices -------------------------------------------------------------------------------


def test_an_empty_folder_is_eight_clean_devices(tmp_path: Path) -> None:
    reading = SimulatedGpus(tmp_path / "none").read(5.0)
    assert len(reading.devices) == 8
    assert len({device.uuid for device in reading.devices}) == 8
    for device in reading.devices:
        assert device.memory_used_bytes.value == 4 * MIB
        assert device.memory_total_bytes.value == 97_887 * MIB
        assert device.utilisation_ratio.value == 0.0
        assert device.processes == ()


def test_a_record_of_a_reused_pid_holds_nothing(tmp_path: Path) -> None:
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    record = {"pid": os.getpid(), "start_ticks": ticks + 1, "gpu": 0, "bytes": MIB, "title": "x"}
    (tmp_path / "holders").mkdir()
    (tmp_path / f"holders/{os.getpid()}.json").write_text(json.dumps(record), "utf-8")
    assert SimulatedGpus(tmp_path).read(0.0).devices[0].memory_used_bytes.value == 4 * MIB


def test_devices_get_busy_with_their_server_and_cool_when_it_is_gone(tmp_path: Path) -> None:
    with sim_server(tmp_path, *BF16) as server, ThreadPoolExecutor(40) as pool:
        sampling = {"max_new_tokens": 6_000, "ignore_eos": True}

        def ask(number: int) -> None:
            body = {"input_ids": server.ids(number=number), "sampling_params": sampling}
            server.http.post("/generate", json=body)

        for number in range(30):
            pool.submit(ask, number)
        until("busy", lambda: (devices(server)[0].utilisation_ratio.value or 0) > 0.8)
        busy = devices(server)[0]
        server.http.post("/abort_request", json={"abort_all": True})
        server.process.kill()
        server.process.wait()
        idle = devices(server)[0]
    assert (busy.power_w.value or 0) > 3 * (idle.power_w.value or 0)
    assert (busy.temperature_c.value or 0) > (idle.temperature_c.value or 0) + 20
    assert idle.utilisation_ratio.value == 0.0


def test_preparing_and_reading_a_host_does_not_load_the_server() -> None:
    code = (
        "import sys, kvctl.core.sim.host, kvctl.core.sim.gpus; "
        "sys.exit(int(bool({'aiohttp', 'httpx', 'textual'} & set(sys.modules))))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
