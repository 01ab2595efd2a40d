"""Settings of `flashdrive train drafter` and `flashdrive train primitives`."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .settings import RunSettings, setting

if TYPE_CHECKING:  # the command line shall not wait for torch
    from .drafting import DraftLossConfig


@dataclass(frozen=True)
class DrafterSettings(RunSettings):
    """Training of a drafter; `model` is its frozen target."""

    layers: int = setting(3, 'layers of the drafter')
    taps: str = setting('1,3,5,6,7', 'layers of the target that it reads')
    block: int = setting(8, 'tokens of a text block when it is used')
    context: int = setting(8, 'tokens before the anchor that a text block sees')
    anchors: int = setting(6, 'text blocks per window, branch and size of block')
    text_weight: float = setting(1.0, 'weight of text blocks; 0: primitives only')
    primitive_weight: float = setting(1.0, 'weight of primitives; 0: text only')
    sampled_share: float = setting(0.5, "share of the target's texts that are drawn, others being "
                                        'its likeliest')
    drafter: str = setting('', 'drafter directory to go on from')

    @property
    def losses(self) -> DraftLossConfig:
        """Loss settings."""
        from .drafting import DraftLossConfig
        return DraftLossConfig(anchors=self.anchors, text_weight=self.text_weight,
                               primitive_weight=self.primitive_weight,
                               sampled_share=self.sampled_share)

    @property
    def streaming(self) -> bool:
        """Whether windows are learned on top of a rollout: never."""
        return False
