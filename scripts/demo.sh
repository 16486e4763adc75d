#!/usr/bin/env bash
# Pretrain a small model on the embedded encyclopedia, then answer questions about it: once from the
# pretrained weights, once from scratch. Offline; needs `transfer` on the PATH.
set -euo pipefail

# A model this small is fastest on one thread.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

runs=${DEMO_DIR:-runs/demo/$(date +%Y-%m-%d_%H-%M-%S)}

step() { printf '\n== %s\n' "$*"; }
accuracy() { python - "$1/results.json" <<'PY'
import json
import sys

measures = json.load(open(sys.argv[1], encoding="utf-8"))["measures"]
print(f"{100 * measures['test']['accuracy']:.0f} %")
PY
}

step "1 of 3: reading a made-up encyclopedia (causal language modelling)"
transfer pretrain experiment=sample/pretrain run.dir="$runs/pretrained"

step "2 of 3: learning to answer from 144 questions, starting from what was read"
transfer finetune experiment=sample/finetune init_from="$runs/pretrained" run.dir="$runs/questions"

step "3 of 3: the same questions and the same model, without having read anything"
transfer finetune experiment=sample/finetune init_from="$runs/pretrained" init=scratch \
  run.dir="$runs/scratch"

cat <<TEXT

What was learnt
  The questions ask what kind of thing an invented name is: a city, a person, a disease, ... The test
  asks about names that no training question mentions. Only the encyclopedia tells.
    with pretraining   $(accuracy "$runs/questions") of the test questions right
    from scratch       $(accuracy "$runs/scratch") right (guessing gives 17 %)

Where things are
  $runs/pretrained   the language model: weights, tokenizer, results.json, curves
  $runs/questions    the classifier made from it

What to type next (first: . .venv/bin/activate)
  tensorboard --logdir $runs
  transfer finetune experiment=sample/frozen init_from=$runs/pretrained    # train a classifier alone
  transfer inspect data=sample_questions init_from=$runs/pretrained        # look at the data
  transfer finetune --help
TEXT
