/* How PEFT names an adapter's tensors. */
#pragma once

#define PEFT_PREFIX "base_model.model." /* the wrapped model, before the path of a module */
#define PEFT_A "lora_A"
#define PEFT_B "lora_B"
#define PEFT_TENSOR "%s.%s.weight"                /* %s: the module's path; PEFT_A or PEFT_B */
#define PEFT_MAGNITUDE "%s.lora_magnitude_vector" /* %s: the module's path; with use_dora */
