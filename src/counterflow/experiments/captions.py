"""What captions say of bands and bars, and what stands along axes that several figures have."""

from __future__ import annotations

BAND = "Lines are means, bands the range from the least to the largest of the Monte-Carlo runs."
BARS = "Markers are means, bars the range from the least to the largest of the Monte-Carlo runs."
BAND_OF_MEDIANS, BARS_OF_MEDIANS = BAND.replace("means", "medians"), BARS.replace("means", "medians")
DODGED = "Markers of one x stand a little beside one another."
BARS_OF_GEOMETRIC_MEANS = BARS.replace("means", "geometric means")
SERVER_LOSS, DISENTANGLEMENT = "$L_s$ (squared states)", "$\\mathcal{D}$ (squared states)"
RELATIVE_LOSS, SHIFT_LEFT = "augmented / proprietary loss", "$\\delta_d$ (states)"
