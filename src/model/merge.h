/* Merging an adapter into its base: W + scale B A, with DoRA of the adapter's row lengths, computed in fp32, stored in the dtype the base
 * has, or quantised as it is. Where the base was quantised under the adapter, W is what its format makes of the file's numbers, also where
 * no adapter belongs to it. */
#pragma once

#include "base/pool.h"
#include "model/peft.h"

/* Writes the merged model as a whole HF folder; tokenizer, chat template and generation_config.json are the adapter's where its
 * folder has them. base's weights must be open. `quantised`: in the format that the base's folder has; matrices that don't change keep
 * their bytes. ERR_INVALID names a tensor of the adapter that the base has no place for. pool may be NULL. */
NODISCARD Status merge_adapter(HfModel *base, const PeftAdapter *adapter, bool quantised, const char *folder, int64_t max_shard_bytes,
                               ThreadPool *pool);
