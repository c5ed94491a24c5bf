"""`python -m qae.integrations.trl --config grpo.yaml`: TRL's script, our advantages."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from qae import quantile_advantages
from trl_cases import MARKS, dataset, logged

pytestmark = MARKS
YAML = """\
model_name_or_path: tiny
datasets:
  - path: json
    data_files: {data}
reward_funcs: [my_rewards.coin]
quantile_k: 0.6
skip_zero_advantage: off
output_dir: {out}
per_device_train_batch_size: 16
num_generations: 8
max_completion_length: 24
max_steps: 2
logging_steps: 1
save_strategy: "no"
report_to: none
use_cpu: true
bf16: false
log_completions: true
"""


def run(tmp_path: Path, yaml: str) -> subprocess.CompletedProcess[str]:
    data, out = tmp_path / "data.jsonl", tmp_path / "out"
    data.write_text("".join(json.dumps(row) + "\n" for row in dataset(16)))
    (tmp_path / "my_rewards.py").write_text((Path(__file__).parents[2] / "trl_cases.py").read_text())
    (tmp_path / "grpo.yaml").write_text(yaml.format(data=data, out=out))
    return subprocess.run(
        [sys.executable, "-m", "qae.integrations.trl", "--config", "grpo.yaml"],
        cwd=tmp_path,
        env=os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_a_yaml_file_trains_with_quantile_advantages(tmp_path):
    done = run(tmp_path, YAML)
    assert done.returncode == 0, done.stderr
    for step in (1, 2):
        rewards, advantages = logged(tmp_path / "out", step)
        expected = quantile_advantages(rewards[:, 0], torch.arange(16) // 8, 0.6, divisor="n-1", eps=1e-4)
        torch.testing.assert_close(advantages.float(), expected, rtol=0, atol=1e-6)
    assert "'k': '0.6'" in done.stdout
    assert "rows/kept_frac" not in done.stdout


@pytest.mark.parametrize(
    ("line", "words"), [("quantile_k: 60", "k is a fraction: 0.6?"), ("quantile_q: 0.6", "quantile_q")]
)
def test_a_wrong_key_or_value_is_refused(tmp_path, line, words):
    done = run(tmp_path, YAML.replace("quantile_k: 0.6", line))
    assert done.returncode != 0
    assert words in done.stderr
