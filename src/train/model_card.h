/* OUTPUT/README.md: the model card, with the metadata that Hugging Face reads at its beginning. It contains no path of this machine. */
#pragma once

#include "config/config.h"
#include "log/history.h"

/* The facts in the card. All are borrowed. */
typedef struct CardFacts {
    const Config  *config;
    const char    *architecture;
    const History *history;   /* the contents of metrics.jsonl */
    int64_t        held_step; /* step of the weights in the folder */
} CardFacts;

/* Writes the card of the run into config's output_dir. A README.md there that this program didn't write, or that was edited, isn't
 * replaced; *out_stays says so. */
NODISCARD Status model_card_write(const CardFacts *facts, bool *out_stays);

/* Removes the card of an earlier run; a README.md that was edited, or that another program wrote, stays. */
NODISCARD Status model_card_remove(const char *output_dir);
