"""In which order the examples are shown: as they are best read; and how they run."""

import warnings
from pathlib import Path

from sphinx_gallery.sorting import ExampleTitleSortKey

SECTIONS = [
    "../examples/likelihood",
    "../examples/tables",
    "../examples/items",
    "../examples/text",
    "../examples/paper",
    "../examples/inside",
]
READING = [
    "plot_digits.py",
    "plot_natural_steps.py",
    "plot_missing_values.py",
    "plot_compare_models.py",
    "plot_cumulative_evidence.py",
    "plot_orders.py",
    "plot_mask_structure.py",
    "plot_choose_n_components.py",
    "plot_mixture.py",
    "plot_outliers.py",
    "plot_two_moons.py",
    "plot_monitor.py",
    "plot_imputation.py",
    "plot_survey.py",
    "plot_predictors.py",
    "plot_anomalies.py",
    "plot_lsat.py",
    "plot_political_scale.py",
    "plot_language_models.py",
    "plot_minimal_pairs.py",
    "plot_reactions.py",
    "plot_text_features.py",
    "plot_protein_variants.py",
    "plot_text_training.py",
    "plot_masked_diffusion.py",
    "plot_convergence.py",
    "plot_fixed_sizes.py",
    "plot_training_curves.py",
    "plot_linear_vae.py",
    "plot_deep_vae.py",
    "plot_deep_vae_gaussian.py",
    "plot_mask_rates_of_nets.py",
    "plot_area.py",
    "plot_curve_over_epochs.py",
    "plot_masked_lm.py",
    "plot_add_a_model.py",
    "plot_in_context.py",
]


class ReadingOrder(ExampleTitleSortKey):
    """Those of `READING` as they stand there, then the others by their titles."""

    def __call__(self, filename):
        name = Path(filename).name
        place = READING.index(name) if name in READING else len(READING)
        return f"{place:03} {super().__call__(filename)}"


def fail_on_warnings(gallery_conf, fname):
    """An example that warns is not fit to be shown, in whatever process it runs."""
    warnings.filterwarnings("error", module=r"__main__|sklearn_mpt")
