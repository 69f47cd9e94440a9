// Activations of gated feed-forward layers.
#pragma once

namespace octavo {

enum class Activation { silu, gelu_tanh };

}  // namespace octavo
