/* Shared by the files of this folder: the structs behind the handles, and how calls begin and end. */
#pragma once

#include "surogate.h"

#include "config/config.h"
#include "infer/generate.h"
#include "infer/infer_model.h"

struct sg_run {
    Config config;
};

struct sg_model {
    InferModel infer;
};

/* Allocates zeroed bytes, which the caller frees with sg_free. */
void *api_allocate(size_t bytes);

/* ERR_INVALID: the argument is NULL; `name` is its name, for the message. */
NODISCARD Status api_need(const void *argument, const char *name);
NODISCARD Status api_need_args(const char *const *args, size_t num_args);

/* Every call except those that only free begins with api_begin and ends with api_end. In between the thread has C's locale
 * (base/c_locale.h) and logs nothing: only training prints. */
void      api_begin(void);
sg_status api_end(Status status);

/* Hands ids out, or frees them after a failure. */
NODISCARD Status api_hand_ids(Status status, TokenIds *ids, int32_t **out_ids, size_t *out_num);
/* Hands a text out, or frees it after a failure. */
NODISCARD Status api_hand_text(Status status, StrBuf *text, char **out_text);

NODISCARD Status api_check_ids(const int32_t *ids, size_t num, int64_t vocab_size);

NODISCARD Status api_check_sampling(const sg_sampling *sampling);
SampleOptions    api_sample_options(const sg_sampling *sampling);

/* For sg_model_generate and sg_trainer_generate: check, then generate. The caller sets all of *job except sink, context and sample. */
NODISCARD Status api_check_generate(const GenerateJob *job, int64_t vocab_size, const sg_sampling *sampling);
NODISCARD Status api_generate(Session *session, GenerateJob *job, const sg_sampling *sampling, TokenIds *out);
