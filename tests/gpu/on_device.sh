# Prepares a GPU machine without a network and runs stages of main_job.py there; from the checkout:
#   OUT=FOLDER bash tests/gpu/on_device.sh unpack FROM...      a packed SGLang (unpack_site.py)
#   OUT=FOLDER bash tests/gpu/on_device.sh STAGE... [options]  what main_job.py takes
#   PROGRAM=tests.gpu.two_gpus OUT=FOLDER bash tests/gpu/on_device.sh [ACT...]  what two_gpus.py takes
# WHEELS: folder with kvctl's wheel and its dependencies. SITE, MODEL, WORK: where things are put.
set -u
SITE=${SITE:-/tmp/kvctl-gpu/site} MODEL=${MODEL:-/tmp/kvctl-gpu/llama-8b-shape}
WORK=${WORK:-/tmp/kvctl-gpu/work} VENV=${VENV:-/tmp/kvctl-gpu/venv} WHEELS=${WHEELS:-.gpu-wheels}
python=$(command -v python3)

if [ "$1" = unpack ]; then
    shift
    exec "$python" -S tests/gpu/unpack_site.py "$@" "$SITE"
fi

# What the packed SGLang needs of its environment; kvctl hands it on to the server it launches.
export SGLANG_PYTHON=$python SGLANG_PYTHONPATH=$SITE:$SITE/nvidia_cutlass_dsl/python_packages
export SGLANG_ENABLE_JIT_DEEPGEMM=0 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
PATH=$(dirname "$python"):$PATH
export PATH KVCTL_GPU_MODEL=$MODEL KVCTL_GPU_SMALL_MODEL=$MODEL-4-layers PYTHONUNBUFFERED=1
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
export CUDA_HOME=${CUDA_HOME:-$(dirname "$(dirname "$(readlink -f "$nvcc")")")}

if [ ! -x "$VENV/bin/kvctl" ]; then
    "$python" -m venv --without-pip "$VENV" || exit
    "$python" -m pip -q --python "$VENV/bin/python" install --no-index --no-deps "$WHEELS"/*.whl || exit
    "$python" -m tests.gpu.model_folder "$MODEL" || exit
    "$python" -m tests.gpu.model_folder "$MODEL-4-layers" 4 || exit
fi
export KVCTL=$VENV/bin/kvctl
exec "$VENV/bin/python" -m "${PROGRAM:-tests.gpu.main_job}" "$@" --work "$WORK" --out "${OUT:?a folder for the results}"
