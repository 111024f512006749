/* Shared by weights.c and weights_save.c. */
#pragma once

/* PEFT writes an adapter's tensors under the path of the wrapped model. */
#define ADAPTER_PREFIX "base_model.model."
