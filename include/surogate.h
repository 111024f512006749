/* Surogate: the public interface, plain C. Handles are opaque; a handle belongs to one thread at a time, different handles may be
 * used from different threads. Text is UTF-8. Nothing here prints, except that training shows its progress on stderr.
 *
 * Every call that can fail returns sg_status; sg_message() then says what, where, what was expected and what to do. */
#ifndef SUROGATE_H
#define SUROGATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SG_API __attribute__((visibility("default")))
#else
#define SG_API
#endif

/* What went wrong; the command line program's exit code for each is sg_exit_code(). */
typedef enum sg_status {
    SG_OK,
    SG_INTERNAL,
    SG_INVALID, /* a run file, model folder, data set or argument is wrong */
    SG_UNSUPPORTED,
    SG_NOT_FOUND,
    SG_IO,
    SG_DEVICE,
    SG_NO_FIT,   /* memory or disk doesn't suffice */
    SG_DIVERGED, /* a loss or gradient norm wasn't finite */
    SG_CHECKPOINT,
    SG_SAVE,
    SG_INTERRUPTED, /* by sg_interrupt, or by a signal to the command line program; a resumable checkpoint was saved */
    SG_RANK,        /* another rank of the run failed */
} sg_status;

SG_API const char *sg_version(void); /* "0.1.0" */
SG_API const char *sg_message(void); /* describes this thread's last failure; valid until the next one */
SG_API int         sg_exit_code(sg_status status);
SG_API void        sg_free(void *memory); /* frees memory that the calls below hand out; NULL is fine */

/* Asks the calls that are running now to end with SG_INTERRUPTED; calls that begin later aren't stopped. May be called from any thread
 * or signal handler. sg_run_train ends after its current step and saves a resumable checkpoint, sg_dataset_open after its current piece
 * of tokenizing, sg_model_generate_rows after its current step. */
SG_API void sg_interrupt(void);

/* ---- training runs ---- */

typedef struct sg_run sg_run;

/* args are those of the command line: the run file's path, then "key=value" overrides. The message lists all problems at once. */
SG_API sg_status sg_run_open(const char *const *args, size_t num_args, sg_run **out_run);
SG_API void      sg_run_close(sg_run *run); /* NULL is fine */

/* The memory, work and time of a step as JSON, as `surogate plan --json` prints them. gpu: the name of a GPU, or NULL for this machine's
 * device. Loads no weights. The caller frees *out_json with sg_free. */
SG_API sg_status sg_run_plan(sg_run *run, const char *gpu, char **out_json);

typedef struct sg_outcome {
    bool    already_finished; /* the output folder already held this run, finished; nothing was trained */
    int64_t steps;
    double  loss, eval_loss; /* the last of each; NaN: there was none */
} sg_outcome;

/* Trains as the run file says, generated samples included, and writes the model to its output_dir. A run that an earlier call left
 * unfinished is resumed. out_outcome may be NULL. */
SG_API sg_status sg_run_train(sg_run *run, sg_outcome *out_outcome);

/* ---- training, step by step ---- */

typedef struct sg_trainer sg_trainer;

/* A run whose steps the caller drives. args are those of sg_run_open (model, from_scratch, lora, recipe, optimizer, device, ...); keys
 * about data, logging, saving, resuming and evaluating have no effect. The same batches give the same bits as sg_run_train. Several
 * ranks (gpus) are threads of this process, and a micro-batch holds the rows of all ranks, rank after rank.
 * Loads the model and allocates all memory that the trainer will ever take; prints nothing. sg_trainer_generate needs generate_samples
 * above 0, sg_trainer_logits needs whole_logits: true. */
SG_API sg_status sg_trainer_open(const char *const *args, size_t num_args, sg_trainer **out_trainer);
SG_API void      sg_trainer_close(sg_trainer *trainer); /* NULL is fine */

typedef struct sg_trainer_info {
    int64_t rows, cols;    /* the largest micro-batch: per_device_train_batch_size rows of each rank, sequence_len columns */
    int64_t micro_batches; /* the most of a step: gradient_accumulation_steps */
    int64_t vocab_size;
    int64_t steps; /* updates queued so far, counted from the run's beginning also after sg_trainer_load */
    int64_t parameters, trained_parameters;
    int64_t device_bytes; /* allocated on each rank's device */
    int64_t seed;
} sg_trainer_info;
SG_API sg_status sg_trainer_get_info(sg_trainer *trainer, sg_trainer_info *out_info);

/* This trainer's plan, as sg_run_plan gives it. The caller frees *out_json with sg_free. */
SG_API sg_status sg_trainer_plan(sg_trainer *trainer, char **out_json);

/* An input that the IR of a model or objective declares, by its name. The IR says whether its values are whole numbers (in ids) or
 * floats (in values). Shape (rows, cols), or (rows, cols, size) where a token has several values. */
typedef struct sg_input {
    const char    *name;
    const int32_t *ids;
    const float   *values;
} sg_input;

/* A micro-batch. Arrays are (rows, cols), row-major. A batch smaller than the trainer's is padded. */
typedef struct sg_batch {
    int64_t        rows, cols;
    const int32_t *ids;       /* token ids */
    const int32_t *targets;   /* the id that follows each token; -100: not trained */
    const int32_t *segments;  /* the number of the token's document, from 0; -1: padding. Tokens attend to tokens of their own document.
                               * NULL: each row is one document. Several documents in a row need sample_packing: true. Dropout draws from
                               * the document's number; where two documents of a step have one number, each draws its own */
    const int32_t *positions; /* the token's position in its document, from 0; NULL: they are counted */

    const sg_input *inputs; /* every declared input that the model reads; sg_dataset_next gives those of the data set's key `inputs` */
    size_t          num_inputs;
} sg_batch;

/* How many values a token has in the input with this name; 0: the model has no such input. */
SG_API int64_t sg_trainer_input_size(sg_trainer *trainer, const char *name);

/* Copies a micro-batch of the next update. */
SG_API sg_status sg_trainer_step(sg_trainer *trainer, const sg_batch *batch);
/* As sg_trainer_step, for batches of sg_dataset_next: a document that occurs twice in a step has the same dropout both times, as in
 * sg_run_train. */
SG_API sg_status sg_trainer_step_data(sg_trainer *trainer, const sg_batch *batch);
/* Forgets the micro-batches of an unfinished step. Fails once their gradients were computed. */
SG_API sg_status sg_trainer_drop(sg_trainer *trainer);
/* Queues the gradients of the step's mean loss over all trained targets. Needed only to read gradients before the update. */
SG_API sg_status sg_trainer_backward(sg_trainer *trainer);
/* Queues the gradients and the update, and returns. lr NaN: the run file's rate at this step. At most two updates may wait for
 * sg_trainer_result. */
SG_API sg_status sg_trainer_update(sg_trainer *trainer, double lr);

typedef struct sg_step {
    int64_t step;       /* counted from 1 */
    double  loss, norm; /* loss: mean over the trained targets, in nats; norm: of all gradients, before clipping */
    double  lr, seconds;
    int64_t tokens, trained; /* tokens without padding; trained targets */
    bool    is_applied;      /* false: loss or norm wasn't finite, and no weight changed */
    double  accuracy;        /* share of the trained targets that were the likeliest token; NaN: the objective doesn't compute it */
} sg_step;
/* Waits for the oldest update whose result wasn't fetched. Fetch it after queuing the next update: that keeps the device busy. */
SG_API sg_status sg_trainer_result(sg_trainer *trainer, sg_step *out_step);
typedef struct sg_scalar {
    const char *name; /* valid until sg_trainer_close */
    double      value;
} sg_scalar;
/* The named scalars of the step that sg_trainer_result gave last: those of the key log_scalars, and accuracy. 0 before the first result. */
SG_API size_t    sg_trainer_num_scalars(sg_trainer *trainer);
SG_API sg_status sg_trainer_scalar(sg_trainer *trainer, size_t index, sg_scalar *out_scalar);

/* Evaluates a batch of any number of rows. losses (rows, cols): -ln p of each target, 0 where the target is -100. *out_loss: the mean over
 * the *out_trained trained targets, NaN if there are none. Each output may be NULL. Micro-batches of an unfinished step stay. */
SG_API sg_status sg_trainer_losses(sg_trainer *trainer, const sg_batch *batch, float *losses, double *out_loss, int64_t *out_trained);

/* The logits of a batch of any number of rows: (rows, cols, vocab_size), `numel` floats, 0 in padding. They are the operand of the loss's
 * softmax, after the model's cap and scale; a bf16 model's are rounded to bf16. Needs whole_logits: true. Targets may be NULL, and of the
 * declared inputs only those that logits depend on are read. Micro-batches of an unfinished step stay. */
SG_API sg_status sg_trainer_logits(sg_trainer *trainer, const sg_batch *batch, float *logits, size_t numel);

typedef struct sg_sampling {
    double   temperature; /* 0: the likeliest token */
    int64_t  top_k;       /* 0: no limit */
    double   top_p;       /* 0 or 1: no limit */
    uint64_t seed;
} sg_sampling;

/* As sg_model_generate, with the trainer's present weights. */
SG_API sg_status sg_trainer_generate(sg_trainer *trainer, const int32_t *ids, size_t num, int64_t max_tokens, const sg_sampling *sampling,
                                     int32_t **out_ids, size_t *out_num);

/* A trained tensor, by its name in Hugging Face's files, or in PEFT's for an adapter. */
typedef struct sg_tensor {
    const char *name; /* valid until sg_trainer_load or sg_trainer_close */
    int         ndim;
    int64_t     dim[4], numel;
} sg_tensor;
SG_API size_t    sg_trainer_num_tensors(sg_trainer *trainer); /* 0: it failed */
SG_API sg_status sg_trainer_tensor(sg_trainer *trainer, size_t index, sg_tensor *out_tensor);
/* Copies the `numel` elements of a tensor, or of its gradient in the last step before clipping, as floats. */
SG_API sg_status sg_trainer_weight(sg_trainer *trainer, size_t index, float *values, size_t numel);
SG_API sg_status sg_trainer_gradient(sg_trainer *trainer, size_t index, float *values, size_t numel);

/* Writes DIR/checkpoint-STEP whole or not at all, and keeps the last save_total_limit of them. dir NULL: output_dir. */
SG_API sg_status sg_trainer_save(sg_trainer *trainer, const char *dir);
/* Replaces weights, optimizer states and step count by those of a checkpoint's folder. */
SG_API sg_status sg_trainer_load(sg_trainer *trainer, const char *checkpoint);
/* Writes a folder that Hugging Face reads; with lora, the adapter is merged in. */
SG_API sg_status sg_trainer_export_model(sg_trainer *trainer, const char *dir);
SG_API sg_status sg_trainer_export_adapter(sg_trainer *trainer, const char *dir); /* a folder that PEFT reads */

/* ---- data sets ---- */

typedef struct sg_dataset sg_dataset;
typedef enum sg_part { SG_TRAIN, SG_VALIDATION } sg_part;

/* The micro-batches that a run with these settings trains or evaluates on, in the run's order. Data that isn't tokenized yet is tokenized
 * into dataset_cache_dir. */
SG_API sg_status sg_dataset_open(const char *const *args, size_t num_args, sg_part part, sg_dataset **out_dataset);
SG_API void      sg_dataset_close(sg_dataset *dataset); /* NULL is fine */

typedef struct sg_dataset_info {
    int64_t steps, micro_batches; /* steps: by max_steps or num_epochs; micro_batches: of each step */
    int64_t documents, rows;      /* in one epoch */
    int64_t tokens, trained;      /* tokens of these rows; trained targets among them */
    int64_t batch_rows, cols;     /* the shape of a micro-batch */
    int64_t seed;
} sg_dataset_info;
SG_API sg_status sg_dataset_get_info(sg_dataset *dataset, sg_dataset_info *out_info);
/* The next sg_dataset_next gives the first micro-batch of `step`, counted from 0. */
SG_API sg_status sg_dataset_seek(sg_dataset *dataset, int64_t step);
/* As sg_trainer_input_size, for the inputs that the data set gives. */
SG_API int64_t sg_dataset_input_size(sg_dataset *dataset, const char *name);
/* The arrays belong to the data set and are valid until its next call. rows 0: the end. */
SG_API sg_status sg_dataset_next(sg_dataset *dataset, sg_batch *out_batch);

/* ---- tokenizers and chat templates ---- */

typedef struct sg_tokenizer sg_tokenizer;

/* dir: a model's folder, or a repository of the hub. */
SG_API sg_status sg_tokenizer_open(const char *dir, sg_tokenizer **out_tokenizer);
SG_API void      sg_tokenizer_close(sg_tokenizer *tokenizer); /* NULL is fine */

typedef struct sg_tokenizer_info {
    int32_t vocab_size;
    int32_t bos, eos, pad; /* -1: the tokenizer has none */
} sg_tokenizer_info;
SG_API sg_status sg_tokenizer_get_info(sg_tokenizer *tokenizer, sg_tokenizer_info *out_info);
/* add_special: with the tokens that the tokenizer puts around a text (BOS, EOS). The caller frees *out_ids with sg_free. */
SG_API sg_status sg_tokenizer_encode(sg_tokenizer *tokenizer, const char *text, size_t len, bool add_special, int32_t **out_ids,
                                     size_t *out_num);
/* *out_text is UTF-8 and NUL-terminated; the caller frees it with sg_free. *out_len: its bytes; may be NULL. */
SG_API sg_status sg_tokenizer_decode(sg_tokenizer *tokenizer, const int32_t *ids, size_t num, bool skip_special, char **out_text,
                                     size_t *out_len);

typedef struct sg_chat_template sg_chat_template;

/* dir: the folder with the template and its special tokens. source: Jinja text to use instead of the folder's template, or NULL. With a
 * source, dir may be NULL. */
SG_API sg_status sg_chat_template_open(const char *dir, const char *source, sg_chat_template **out_template);
SG_API void      sg_chat_template_close(sg_chat_template *tmpl); /* NULL is fine */

/* conversation: JSON, a list of messages or {"messages": [...], "tools": [...]}. The caller frees *out_text with sg_free. */
SG_API sg_status sg_chat_template_render(sg_chat_template *tmpl, const char *conversation, bool add_generation_prompt, char **out_text);
/* As sg_chat_template_render, with the text's bytes in *out_len (may be NULL): a text may contain NUL, as a conversation may (\u0000). */
SG_API sg_status sg_chat_template_render_text(sg_chat_template *tmpl, const char *conversation, bool add_generation_prompt, char **out_text,
                                              size_t *out_len);

typedef enum sg_train_on { SG_TRAIN_ASSISTANT, SG_TRAIN_LAST_TURN, SG_TRAIN_ALL } sg_train_on;
/* A conversation as training sees it: its ids, and a mask with 1 for each trained id. The caller frees both with sg_free. */
SG_API sg_status sg_chat_template_encode(sg_chat_template *tmpl, sg_tokenizer *tokenizer, const char *conversation, sg_train_on train_on,
                                         int32_t **out_ids, uint8_t **out_mask, size_t *out_num);

/* ---- models ---- */

typedef struct sg_model sg_model;

/* dir: a model folder, or an adapter folder that names its base. adapter: a PEFT folder to apply to the model, or NULL. device: "auto" (or
 * NULL), "cpu" or "cuda". threads: of the CPU; 0: all cores. */
SG_API sg_status sg_model_open(const char *dir, const char *adapter, const char *device, int threads, sg_model **out_model);
SG_API void      sg_model_close(sg_model *model); /* NULL is fine */

/* How sg_model_open_as opens a model. Each comment says what 0 or NULL stands for. */
typedef struct sg_model_options {
    size_t      size;         /* sizeof(sg_model_options), so that later versions may add fields */
    const char *adapter;      /* a PEFT folder to apply to the model; NULL: none, unless dir is an adapter folder */
    const char *device;       /* "auto", "cpu" or "cuda"; NULL: "auto" */
    int         threads;      /* CPU threads; 0: all cores */
    const char *dtype;        /* dtype of weights and arithmetic: "fp32", "bf16" or "fp16"; NULL: the folder's */
    const char *quantization; /* format that the blocks' matrices are quantized to as they load: "int8", "fp8", "nf4" or "nvfp4"; "none":
                               * not quantized; NULL: as the folder has them */
    const char *kv;           /* dtype of the KV cache: "fp8" (e4m3) or "auto" (the model's dtype); NULL: "auto" */
    bool        split_k;      /* split long sums of decoding on GPUs of compute capability 9.0: faster, but the bits differ */
} sg_model_options;

/* sg_model_open with more options. */
SG_API sg_status sg_model_open_as(const char *dir, const sg_model_options *options, sg_model **out_model);

/* The ids that the model is fed for a text. The caller frees *out_ids (num) with sg_free. */
SG_API sg_status sg_model_encode(sg_model *model, const char *text, size_t len, int32_t **out_ids, size_t *out_num);

/* The text of ids without special tokens, NUL-terminated. The caller frees it with sg_free. */
SG_API sg_status sg_model_decode(sg_model *model, const int32_t *ids, size_t num, char **out_text);
/* As sg_model_decode, with the text's bytes in *out_len (may be NULL): the text may contain NUL. */
SG_API sg_status sg_model_decode_text(sg_model *model, const int32_t *ids, size_t num, char **out_text, size_t *out_len);

/* losses[i] = -ln p(ids[i+1] | ids[0..i]), num - 1 values. num >= 2. */
SG_API sg_status sg_model_losses(sg_model *model, const int32_t *ids, size_t num, float *losses);

/* ln p of every token of many rows. rows: JSON Lines of {"text"}, {"prompt", "completion"}, {"messages"} (with "tools" or without; the
 * assistant's turns are the trained tokens) or {"ids"}; "ids" may come with "labels", a "mask" or "prompt_tokens", as in data sets of ids.
 * The output has one line of JSON a row, in the same order: "ids"; "logprobs" of the ids, null for the first; "labels" of messages, or if
 * labels or a mask were given; "prompt_tokens" if there is a prompt; "tokens", how many trained tokens
 * were summed; "sum", of their logprobs. A row's values don't depend on the other rows. The caller frees *out_lines with sg_free; *out_len:
 * its bytes; may be NULL. */
SG_API sg_status sg_model_score(sg_model *model, const char *rows, size_t len, char **out_lines, size_t *out_len);

/* Continues ids by up to max_tokens ids; stops before an end-of-text token. The caller frees *out_ids with sg_free. */
SG_API sg_status sg_model_generate(sg_model *model, const int32_t *ids, size_t num, int64_t max_tokens, const sg_sampling *sampling,
                                   int32_t **out_ids, size_t *out_num);

/* How sg_model_generate_rows generates. Each comment says what 0 stands for. */
typedef struct sg_generation {
    size_t             size; /* sizeof(sg_generation), so that later versions may add fields */
    sg_sampling        sampling;
    double             min_p;                               /* least probability, as a share of the likeliest token's; 0: no limit */
    double             repetition_penalty;                  /* 0 or 1: none */
    double             presence_penalty, frequency_penalty; /* -2 to 2; 0: none */
    const int32_t     *bias_ids; /* biases[i] is added to the logit of token bias_ids[i]; -INFINITY: it is never chosen */
    const float       *biases;
    size_t             num_biases;
    const char *const *stops; /* generation stops at these texts, which aren't part of the output */
    size_t             num_stops;
    int64_t            max_tokens;   /* 0: 128 */
    int64_t            n;            /* samples of each prompt; 0: 1 */
    int64_t            rows;         /* samples that are generated at the same time; 0: 16 on a CPU, 64 on a GPU */
    int32_t            top_logprobs; /* with logprobs: also the logprobs of this many likeliest tokens, at most 20 */
    bool               logprobs;
    bool               ignore_eos; /* generation goes on after an end-of-text token */
    bool               skip_bad;   /* a bad row gives {"index", "error"} and the others are generated; false: the call fails */
    /* Names and folders of PEFT adapters; the model must have been opened without one. A row's "adapter" names the one to apply; null or
     * absent: none. Each call reads the folders again. */
    const char *const *adapter_names, *const *adapter_dirs;
    size_t num_adapters;
} sg_generation;

/* Generates from many prompts. rows: JSON Lines of {"prompt"}, {"messages"} (optionally with "tools") or {"ids"}; each may have "id",
 * "adapter" and "max_tokens". The output has one line of JSON a sample, ordered by row, then sample: "index" of the row, from 0; "sample",
 * its number; "id"; "text", null without a tokenizer; "ids"; "stop_reason": eos, stop, length or context; with logprobs also "logprobs",
 * an {"id", "logprob", "top"} for each token. A sample depends only on its prompt, its index and number, and the settings. Memory and
 * compiled programs are kept for the next call. The caller frees *out_lines with sg_free; *out_len: its bytes; may be NULL. */
SG_API sg_status sg_model_generate_rows(sg_model *model, const char *rows, size_t len, const sg_generation *settings, char **out_lines,
                                        size_t *out_len);

/* ---- ids of hidden states ---- */

typedef struct sg_head_decoder sg_head_decoder;

typedef enum sg_dtype { SG_F32, SG_F16, SG_BF16, SG_I8 } sg_dtype;
typedef enum sg_strategy { SG_GREEDY, SG_TEMPERATURE, SG_TOP_K, SG_TOP_P } sg_strategy;

/* A matrix of (vocab, dim) numbers. */
typedef struct sg_matrix {
    const void  *data;
    sg_dtype     dtype;
    bool         by_columns; /* column-major; else row-major */
    bool         on_device;  /* data is on the decoder's (first) GPU; else on the host */
    const float *scale;      /* for SG_I8: (vocab) factors of the rows, on the host; else NULL */
} sg_matrix;

typedef struct sg_head_options {
    int64_t      vocab, dim;
    int64_t      max_rows; /* the most rows of a batch */
    sg_dtype     dtype;    /* the matrix is rounded to this dtype when it is copied; SG_I8: 8 bits and a scale for each row */
    const char  *device;   /* "auto" (or NULL), "cpu" or "cuda"; "cuda:0,1": these GPUs divide the matrix by rows */
    int          gpu;      /* index of the GPU, from 0 */
    int          threads;  /* CPU threads; 0: all cores */
    sg_strategy  strategy;
    double       temperature; /* above 0; SG_GREEDY doesn't read it */
    int64_t      top_k;       /* read by SG_TOP_K */
    double       top_p;       /* read by SG_TOP_P */
    uint64_t     seed;
    const float *bias; /* (vocab) numbers on the host, added to each row's logits; NULL: none */
} sg_head_options;

/* Decodes with a bare output matrix: logits = hidden matrix^T + bias, then one id is chosen for each row. The matrix is copied. A row's id
 * depends on its hidden state, the seed, the batch's number and the row's index in it, never on other rows. */
SG_API sg_status sg_head_decoder_open(const sg_head_options *options, const sg_matrix *matrix, sg_head_decoder **out_decoder);
SG_API void      sg_head_decoder_close(sg_head_decoder *decoder); /* NULL is fine */

typedef struct sg_head_info {
    int64_t     device_bytes; /* allocated by the decoder, the matrix included */
    const char *device;       /* "cpu" or "cuda"; valid until sg_head_decoder_close */
    void       *stream;  /* the cudaStream_t that reads batches: kernels that write a device array must come before it; NULL on the CPU */
    int64_t     batches; /* queued so far */
    int64_t     waiting; /* rows of the oldest batch whose result wasn't fetched; 0: there is none */
} sg_head_info;
SG_API sg_status sg_head_decoder_get_info(sg_head_decoder *decoder, sg_head_info *out_info);

/* Queues a batch and returns. hidden: (rows, dim) in SG_F32, SG_F16 or SG_BF16, on the host or (on_device) on the decoder's GPU; an array
 * on the GPU must not change before the result is fetched. At most two batches may wait for sg_head_decoder_result. */
SG_API sg_status sg_head_decoder_decode_later(sg_head_decoder *decoder, const void *hidden, sg_dtype dtype, bool on_device, int64_t rows);
/* Waits for the oldest queued batch and gives an id for each of its rows. SG_INVALID: the logits of some row are NaN; that row's id
 * is negative, the other rows' ids are right. */
SG_API sg_status sg_head_decoder_result(sg_head_decoder *decoder, int32_t *ids, int64_t rows);

#ifdef __cplusplus
}
#endif
#endif
