"use strict";
// One job: fade what happens after the chosen step, and show the chosen neuron.
const look = document.getElementById("look");
if (look) {
  const [slider, choice, said] = ["step", "neuron", "said"].map((id) => document.getElementById(id));
  const show = () => {
    const step = Number(slider.value);
    const layer = choice.value.split("-")[0];
    for (const part of look.querySelectorAll("[data-neuron]")) part.hidden = part.dataset.neuron !== choice.value;
    for (const part of look.querySelectorAll("[data-layer]")) part.hidden = part.dataset.layer !== layer;
    for (const part of look.querySelectorAll("[data-t]")) {
      part.classList.toggle("later", Number(part.dataset.t) > step);
      part.classList.toggle("now", Number(part.dataset.t) === step);
    }
    said.textContent = look.querySelector(`[data-neuron="${choice.value}"] tr[data-t="${step}"]`).dataset.say;
    slider.setAttribute("aria-valuetext", said.textContent);
  };
  look.querySelector(".controls").hidden = false;
  slider.addEventListener("input", show);
  choice.addEventListener("change", show);
  show();
}
