"""What was proved about the network."""

from offspike.fixed.certificate import Certificate
from offspike.page import markup

__all__ = ["certificate"]


def certificate(found: Certificate | None) -> str:
    """The verdict, what the proof lacks, both tables and the hashes."""
    if found is None:
        return ""
    body = markup.paragraph(found.verdict(), kind="note")
    body += "".join(markup.paragraph(reason, kind="muted") for reason in found.reasons[1:])
    body += markup.table(
        f"Neuron layers in whole numbers at T = ρ = L = {found.steps}, and what was seen of them.",
        ["Layer", "θ", "Largest current", "Bits of ΣI", "Membrane bits", "Inputs equal (%)", "Outputs equal (%)", "MSE",
         "Offset spikes"],
        [_neurons(name, found) for name in found.layers],
    )  # fmt: skip
    body += markup.table(
        "Layers with weights: bits without sign, and the arithmetics in which every sum is exact.",
        ["Layer", "Weights", "Inputs", "Sums", "Exact in"],
        [
            [name, str(made.weight_bits), str(made.input_bits), str(made.bits), ", ".join(made.exact_in) or markup.NONE]
            for name, made in found.sums.items()
        ],
    )
    facts = {"weights (SHA-256)": found.weights, "data (SHA-256)": found.data, **found.provenance}
    return body + markup.definitions(facts)


def _neurons(name: str, certificate: Certificate) -> list[str]:
    layer = certificate.layers[name]
    bound = layer.bound
    numbers = [markup.NONE] * 4
    if bound is not None:
        numbers = [f"{bound.threshold:,}", f"{bound.current:,}", str(bound.sum_bits), str(bound.membrane_bits)]
    offsets = ", ".join(f"{psi:+d}: {count:,}" for psi, count in sorted(layer.outputs.histogram.items()) if psi)
    seen = [f"{100 * layer.inputs.ratio:.2f}", f"{100 * layer.outputs.ratio:.2f}", f"{layer.outputs.mse:.4g}"]
    return [name, *numbers, *seen, offsets or "none"]
