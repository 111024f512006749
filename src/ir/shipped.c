/* The shipped families: models/ *.json, in the program's read-only data. */
#include "ir/module.h"

#include <string.h>

#define EMBED(symbol, file) \
    __asm__(".section .rodata\n.global " #symbol "\n.global " #symbol "_end\n" #symbol ":\n.incbin \"" SUROGATE_MODELS_DIR "/" file \
            "\"\n" #symbol "_end:\n.byte 0\n.previous\n"); \
    extern const char symbol[], symbol##_end[];

EMBED(ir_shipped_qwen3, "qwen3.json")
EMBED(ir_shipped_qwen2, "qwen2.json")
EMBED(ir_shipped_llama, "llama.json")

static const char *const names[] = {"Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM", NULL};

const char *ir_shipped_module(const char *architecture, size_t *out_len)
{
    const char *const begins[] = {ir_shipped_qwen3, ir_shipped_qwen2, ir_shipped_llama};
    const char *const ends[] = {ir_shipped_qwen3_end, ir_shipped_qwen2_end, ir_shipped_llama_end};
    for (int i = 0; names[i]; i++) {
        if (strcmp(names[i], architecture) != 0) continue;
        *out_len = (size_t)(ends[i] - begins[i]);
        return begins[i];
    }
    return NULL;
}

const char *const *ir_shipped_architectures(void)
{
    return names;
}
