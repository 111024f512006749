/* Merging an adapter into its base: W + scale B A; with DoRA its rows are then scaled to the adapter's magnitudes. The sum is computed in
 * fp32 and stored in the base's dtype, or quantised as the base is. If the adapter was trained over a quantised base, W holds the file's
 * values after quantising and dequantising, even in matrices without an adapter. */
#pragma once

#include "base/pool.h"
#include "model/peft.h"

/* Writes the merged model as a whole HF folder. Opens base's weights. Tokenizer, chat template and generation_config.json are the adapter's
 * if its folder has them. `quantised`: write matrices in the format of the base's folder; unchanged ones keep their bytes. ERR_INVALID
 * names a tensor of the adapter that has no place in the base. pool may be NULL. */
NODISCARD Status merge_adapter(HfModel *base, const PeftAdapter *adapter, bool quantised, const char *folder, int64_t max_shard_bytes,
                               ThreadPool *pool);
