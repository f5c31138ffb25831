import pytest
from tests.nvml.cases import process_facts

from kvctl.core.domain.gpus.devices import ProcessFacts
from kvctl.core.domain.gpus.supervisors import Owner, find_owner

ID = "3f2a9c0d1e4b" + "0" * 52
MAIN = "python -m sglang.launch_server"


def owner(cgroup: str = "/", *above: str, title: str = MAIN) -> Owner | None:
    """The owner of a process with these ancestors, nearest first, all in one session."""
    chain: list[ProcessFacts] = []
    for depth, name in enumerate((title, *above)):
        last = depth == len(above)
        chain.append(
            process_facts(50 - depth, name, parent_pid=1 if last else 49 - depth, cgroup=cgroup)
        )
    return find_owner(chain[0], {p.identity.pid: p for p in chain})


@pytest.mark.parametrize(
    ("cgroup", "text", "command"),
    [
        ("/system.slice/sglang.service", "systemd sglang.service", "systemctl stop sglang.service"),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/sglang.service",
            "systemd user unit sglang.service",
            "systemctl --user stop sglang.service",
        ),
        (f"/system.slice/docker-{ID}.scope", "docker 3f2a9c0d1e4b", "docker stop 3f2a9c0d1e4b"),
        (f"/docker/{ID}", "docker 3f2a9c0d1e4b", "docker stop 3f2a9c0d1e4b"),
        (
            f"/machine.slice/libpod-{ID}.scope/container",
            "podman 3f2a9c0d1e4b",
            "podman stop 3f2a9c0d1e4b",
        ),
        (
            f"/system.slice/containerd.service/cri-containerd-{ID}.scope",
            "container 3f2a9c0d1e4b",
            "crictl stop 3f2a9c0d1e4b",
        ),
        ("/slurm/uid_1000/job_4711/step_0/task_0", "slurm job 4711", "scancel 4711"),
        (
            "/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0",
            "slurm job 4711",
            "scancel 4711",
        ),
    ],
)
def test_a_supervisor_is_read_from_the_cgroup(cgroup: str, text: str, command: str) -> None:
    assert owner(cgroup) == Owner(text, True, command)


def test_a_kubernetes_pod_is_named() -> None:
    pod = "pod0b1c2d3e_1111_2222_3333_444455556666"
    found = owner(f"/kubepods.slice/kubepods-burstable-{pod}.slice/cri-containerd-{ID}.scope")
    assert found is not None and found.restarts
    assert found.text == "kubernetes pod 0b1c2d3e-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    "cgroup",
    [
        "",
        "/",
        "/user.slice/user-1000.slice/session-3.scope",
        "/user.slice/user-1000.slice/user@1000.service/tmux-spawn-0b1c.scope",
        "/user.slice/user-1000.slice/user@1000.service/init.scope",
        "/system.slice/ssh.service",
        "/system.slice/cron.service",
    ],
)
def test_a_login_is_no_supervisor(cgroup: str) -> None:
    assert owner(cgroup) is None


def test_supervisord_is_found_among_the_parents() -> None:
    found = owner("/", "/usr/bin/python3 /usr/bin/supervisord -c /etc/s.conf")
    assert found == Owner("supervisord (pid 49)", True, "supervisorctl stop NAME")


def test_a_scheduler_has_the_owner_of_its_server() -> None:
    found = owner("/", MAIN, "runsv sglang", title="sglang::scheduler_TP0")
    assert found is not None and found.text == "runsv (pid 48)"


def test_a_slurm_step_is_found_among_the_parents() -> None:
    assert owner("/", "slurmstepd: [4711.batch]") == Owner("slurm job 4711", True, "scancel 4711")


@pytest.mark.parametrize(
    "parent",
    ["bash run.sh", "bash -lc loop", "bash -s", "/bin/sh -c while :; do x; done", "python up.py"],
)
def test_a_living_script_may_start_it_again(parent: str) -> None:
    found = owner("/", parent)
    assert found is not None and found.restarts is None and parent[:20] in found.text


@pytest.mark.parametrize("parent", ["-bash", "bash", "zsh -l", "bash --norc -i", "sshd: op@pts/0"])
def test_an_interactive_shell_does_not(parent: str) -> None:
    assert owner("/", parent) is None


def test_a_tmux_pane_is_named_and_does_not_restart() -> None:
    assert owner("/", "-bash", "tmux new -s work") == Owner("tmux (pid 48)", False)
