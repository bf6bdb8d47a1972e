"""What a teacher reads in use: single texts, perhaps with a prompt, or pairs of texts."""

from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from mabert.baselines.uses import Use
from mabert.data.encode import Encoding
from mabert.files.sentences import SentenceFolder, is_cross_encoder

Part = tuple[int, ...]


@dataclass(frozen=True)
class Frame:
    """The tokens that a tokenizer, and a prompt, put around one text, or around and between two.

    Attributes:
        ids: Ids before the first text and behind each text.
        types: Token types of those; all 0 if the tokenizer makes none.
        of_texts: Token type of each text.
    """

    ids: tuple[Part, ...]
    types: tuple[Part, ...]
    of_texts: Part

    @property
    def is_pair(self) -> bool:
        """Whether it is around two texts."""
        return len(self.of_texts) == 2

    @property
    def size(self) -> int:
        """Number of its tokens."""
        return sum(map(len, self.ids))

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast, *, pair: bool = False, prompt: str = "") -> "Frame":
        """Reads the frame from what the tokenizer makes of short texts.

        Args:
            tokenizer: The teacher's tokenizer.
            pair: Whether it is around two texts.
            prompt: Text in front of the first text.
        """
        found = tokenizer(["a"], ["a"] if pair else None)
        ids = found["input_ids"][0]
        types = found.get("token_type_ids", [[0] * len(ids)])[0]
        text_of = found.encodings[0].sequence_ids
        texts = [[at for at, text in enumerate(text_of) if text == number] for number in range(1 + pair)]
        starts, ends = [0, *(own[-1] + 1 for own in texts)], [*(own[0] for own in texts), len(ids)]
        first, *behind = [(tuple(ids[a:b]), tuple(types[a:b])) for a, b in zip(starts, ends, strict=True)]
        kinds = tuple(types[own[0]] for own in texts)
        # Where a vocabulary has words with their space in front, most pieces begin with one, so the prompt has none.
        said = tuple(tokenizer(prompt.rstrip(), add_special_tokens=False)["input_ids"]) if prompt.strip() else ()
        parts = [(first[0] + said, first[1] + (kinds[0],) * len(said)), *behind]
        return cls(tuple(part[0] for part in parts), tuple(part[1] for part in parts), kinds)


def frames_of(
    place: str | Path,
    use: Use,
    tokenizer: PreTrainedTokenizerFast,
    sentences: SentenceFolder | None,
    pairs: bool | None,
) -> tuple[Frame, ...]:
    """Returns the frames in which a student learns from texts, in turns: those in which its teacher reads them in use.

    Args:
        place: The teacher's folder.
        use: The teacher's use.
        tokenizer: The teacher's tokenizer.
        sentences: The teacher's settings of sentence-transformers; each of their prompts has a frame.
        pairs: Whether the teacher reads pairs of texts; None if its folder says so, or else it reads both.

    Raises:
        ValueError: If pairs are wanted of a model that is no classifier.
    """
    if use != "classifier":
        if pairs:
            raise ValueError(f"pairs is on, and {place} is no classifier; only those read pairs of texts")
        prompts = ("",) if sentences is None else sentences.prompts
        return tuple(Frame.of(tokenizer, prompt=prompt) for prompt in prompts)
    known = pairs if pairs is not None else reads_pairs(place)
    return tuple(Frame.of(tokenizer, pair=pair) for pair in ((False, True) if known is None else (known,)))


def reads_pairs(place: str | Path) -> bool | None:
    """Returns whether a classifier's folder says that it reads pairs of texts; None if it says nothing."""
    encoding = Encoding.beside(place)
    if encoding is not None:
        return encoding.pairs
    return True if is_cross_encoder(place) else None
