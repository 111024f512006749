/* OUTPUT/README.md: the model card, with the metadata that Hugging Face reads at its head. It names no path of this machine. */
#pragma once

#include "config/config.h"
#include "log/history.h"

/* What the card tells. All is borrowed. */
typedef struct CardFacts {
    const Config  *config;
    const char    *architecture;
    const History *history;   /* of metrics.jsonl */
    int64_t        held_step; /* whose weights the folder holds */
} CardFacts;

/* Writes the card of the run in config's output_dir, unless a README.md lies there that isn't a card as this program wrote it: that stays,
 * and *out_stays says so. */
NODISCARD Status model_card_write(const CardFacts *facts, bool *out_stays);

/* Removes the card of an earlier run; a README.md that was edited, or is another's, stays. */
NODISCARD Status model_card_remove(const char *output_dir);
