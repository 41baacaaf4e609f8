"""Train a plan with the SFTTrainer of TRL.

python -m tokenstore.examples.trainers.trl_sft DATA RUN
torchrun --nproc-per-node 2 -m tokenstore.examples.trainers.trl_sft DATA RUN
"""

from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

from tokenstore.examples.trainers import hf, journal
from tokenstore.examples.trainers.common import Options, main
from tokenstore.trainers.huggingface import TokenTrainerMixin


class TokenSFTTrainer(TokenTrainerMixin, SFTTrainer):
    """SFTTrainer, for plans."""

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Record the losses of steps and evaluations, and the number of tokens."""
        if "loss" in logs:
            journal.loss(self.state.global_step - 1, logs["loss"])
        if "eval_loss" in logs:
            journal.evaluated(logs["eval_loss"])
        super().log(logs, *args, **kwargs)
        if "loss" in logs:
            journal.write("tokens", step=self.state.global_step - 1, value=self.state.log_history[-1]["num_tokens"])


def model(options: Options) -> Any:
    """A tiny Llama whose forward passes are recorded. TRL computes its loss from hidden states, without logits."""
    made = hf.model(options, record=False)
    hidden: list[torch.Tensor] = []
    made.model.register_forward_hook(lambda module, args, output: hidden.__setitem__(slice(None), [output[0]]))
    journal.watch(made, options.plan, options.eval_plan, logits=lambda output: made.lm_head(hidden[0]))
    return made


def train(options: Options) -> None:
    """Train to the end of the plan, from the last checkpoint if there is one, and evaluate."""
    words = WordLevel({"<eos>": 0, "<pad>": 1}, unk_token="<eos>")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), eos_token="<eos>", pad_token="<pad>")
    arguments = SFTConfig(**hf.arguments(options), max_length=None)
    # data
    plans: dict[str, Any] = {"train_plan": options.plan, "eval_plan": options.eval_plan}
    trainer = TokenSFTTrainer(model(options), arguments, processing_class=tokenizer, **plans)
    # end
    last = get_last_checkpoint(str(options.run))
    journal.resumed(int(last.rpartition("-")[2]) if last else 0)
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main(__doc__, train)
