# `transfer` in a container; docs/install.md says how to build and run it.

# An image with Python 3.11 or later. One that brings PyTorch along, for CUDA say, keeps its PyTorch.
ARG BASE=python:3.12-slim
FROM ${BASE}

# The index of the PyTorch build that is wanted (for the CPU alone, for a certain CUDA), as PyTorch's
# own page names it. Without one it is the build that pip finds, on Linux with CUDA.
ARG TORCH_INDEX=
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch>=2.6,<3"

ARG EXTRAS=search,report,hf,tables,serve
WORKDIR /opt/transfer
COPY pyproject.toml setup.py README.md LICENSE ./
COPY conf conf
COPY transfer_cli transfer_cli
RUN pip install --no-cache-dir ".[$EXTRAS]" && mkdir -m 1777 /cache

# Whoever the container runs as can write here; mount a folder to keep it.
ENV TRANSFER_DATA=/cache/data TRANSFER_CACHE=/cache/cache HOME=/tmp
WORKDIR /work
ENTRYPOINT ["transfer"]
