// Activations of feed-forward layers, with a gate or without. `gelu` is the form with the error function.
#pragma once

namespace octavo {

enum class Activation { silu, gelu_tanh, gelu, relu, tanh };

}  // namespace octavo
