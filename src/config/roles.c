#include "config/roles.h"

#include <stdbool.h>
#include <stddef.h>
#include <strings.h>

static const char *const spellings[][2] = {
    {"user", "user"},           {"human", "user"},
    {"assistant", "assistant"}, {"gpt", "assistant"},
    {"chatgpt", "assistant"},   {"bing", "assistant"},
    {"bot", "assistant"},       {"chatbot", "assistant"},
    {"model", "assistant"},     {"function_call", "assistant"},
    {"tool", "tool"},           {"function", "tool"},
    {"observation", "tool"},    {"function_response", "tool"},
    {"system", "system"},       {"developer", "developer"},
};

const char *role_known(const char *role)
{
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
        bool has_same_letter = ((role[0] ^ spellings[i][0][0]) & ~0x20) == 0; /* cheap, and false for most rows: tested before strcasecmp */
        if (has_same_letter && strcasecmp(role, spellings[i][0]) == 0) return spellings[i][1];
    }
    return NULL;
}
