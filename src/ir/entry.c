#include "ir/entry.h"

#define ENTRY(id, ...) const Entry entry_##id = {.name = #id, __VA_ARGS__};
#include "ir/entries.def"
#undef ENTRY

const Entry *entry_at(int index)
{
    static const Entry *const entries[] = {
#define ENTRY(id, ...) &entry_##id,
#include "ir/entries.def"
#undef ENTRY
    };
    return entries[index];
}

bool entry_makes_steps(const Entry *entry)
{
    return entry->has_grads && !entry->measures;
}
