/* The shipped families: models/ *.json that models/families.def lists, in the program's read-only data. */
#include "ir/module.h"

#include <string.h>

#define EMBED(symbol, file) \
    __asm__(".section .rodata\n.global " #symbol "\n.global " #symbol "_end\n" #symbol ":\n.incbin \"" SUROGATE_MODELS_DIR "/" file \
            "\"\n" #symbol "_end:\n.byte 0\n.previous\n"); \
    extern const char symbol[], symbol##_end[];

#define FAMILY(name, architecture) EMBED(ir_shipped_##name, #name ".json")
#include SUROGATE_FAMILIES
#undef FAMILY

#define FAMILY(name, architecture) architecture,
static const char *const names[] = {
#include SUROGATE_FAMILIES
    NULL};
#undef FAMILY

const char *ir_shipped_module(const char *architecture, size_t *out_len)
{
#define FAMILY(name, architecture) {ir_shipped_##name, ir_shipped_##name##_end},
    const char *const texts[][2] = {
#include SUROGATE_FAMILIES
    };
#undef FAMILY
    for (int i = 0; names[i]; i++) {
        if (strcmp(names[i], architecture) != 0) continue;
        *out_len = (size_t)(texts[i][1] - texts[i][0]);
        return texts[i][0];
    }
    return NULL;
}

EMBED(ir_shipped_sft, "objectives/sft.json")

Status ir_shipped_objective(Arena *arena, IrModule **out_module)
{
    return ir_objective_parse(arena, "sft", ir_shipped_sft, (size_t)(ir_shipped_sft_end - ir_shipped_sft), out_module);
}

const char *const *ir_shipped_architectures(void)
{
    return names;
}
