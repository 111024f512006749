/* Training: counts words in parallel (one table per worker, summed in a fixed order), learns merges, writes the files. */
#include "text/bpe_train.h"

#include "base/array.h"
#include "base/str.h"
#include "files/file.h"
#include "text/bpe_merge.h"
#include "text/normalize.h"
#include "text/pretokenize.h"

#include <stdlib.h>
#include <string.h>

/* Qwen2's expression: each digit is a word, and letters form a word with at most one other character before them. */
#define DEFAULT_PATTERN \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

enum { CHUNK_BYTES = 1 << 18, MAX_VOCAB = 1 << 22 };

typedef struct Worker {
    WordCounts counts;
    PreScratch pre;
    StrBuf     repaired, normal[2];
    Status     status;
    char       message[512]; /* error message of the worker's first failure */
} Worker;

struct BpeTrainer {
    BpeTrainOptions options;
    Arena           arena;
    Normalizer     *normalizer;
    PreTokenizer   *pre;
    Scanner         scanner;
    Worker         *workers;
    int             num_workers;
    Str            *chunks;
    size_t          num_chunks, chunk_capacity;
    WordCounts      tokens; /* vocabulary in id order; special tokens are texts, all others raw bytes */
    int             num_special;
    LearnedMerges   merges;
    bool            trained;
};

/* Writes the "pre_tokenizer" of the tokenizer.json. */
static void pre_json_write(const BpeTrainOptions *options, StrBuf *out)
{
    strbuf_puts(out, "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":");
    json_write_string(out, options->pattern, strlen(options->pattern));
    strbuf_puts(out, "},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                     "\"trim_offsets\":false,\"use_regex\":false}]}");
}

static Status pre_create(BpeTrainer *trainer)
{
    StrBuf    text = {0};
    Arena     tree = {0};
    JsonValue json;
    pre_json_write(&trainer->options, &text);
    Status status = json_parse(&tree, "pattern", text.data, text.len, &json);
    if (status == OK) status = pretokenizer_parse(&trainer->arena, &json, &trainer->pre);
    if (status == OK) status = json_parse(&tree, "normalizer", "{\"type\":\"NFC\"}", 14, &json);
    if (status == OK) status = normalizer_parse(&trainer->arena, &json, &trainer->normalizer);
    arena_deinit(&tree);
    strbuf_deinit(&text);
    return status;
}

Status bpe_trainer_create(const BpeTrainOptions *options, BpeTrainer **out_trainer)
{
    *out_trainer = NULL;
    FAIL_IF(options->vocab_size < options->num_special_tokens + 256 || options->vocab_size > MAX_VOCAB, ERR_INVALID,
            "vocab_size %d: expected from %d (the bytes and special tokens) to %d", options->vocab_size, options->num_special_tokens + 256,
            MAX_VOCAB);
    BpeTrainer *trainer = calloc_or_end(1, sizeof *trainer);
    trainer->options = *options;
    if (!options->pattern) trainer->options.pattern = DEFAULT_PATTERN;
    Status status = pre_create(trainer);
    if (status != OK) {
        bpe_trainer_destroy(trainer);
        return status;
    }
    trainer->scanner = scanner_of_pattern(trainer->options.pattern, strlen(trainer->options.pattern));
    trainer->num_workers = pool_num_workers(options->pool);
    trainer->workers = calloc_or_end((size_t)trainer->num_workers, sizeof *trainer->workers);
    for (int i = 0; i < trainer->num_workers; i++) trainer->workers[i].pre.regex = regex_scratch_create();
    *out_trainer = trainer;
    return OK;
}

void bpe_trainer_destroy(BpeTrainer *trainer)
{
    if (!trainer) return;
    for (int i = 0; i < trainer->num_workers; i++) {
        Worker *worker = &trainer->workers[i];
        word_counts_deinit(&worker->counts);
        regex_scratch_destroy(worker->pre.regex);
        pre_scratch_deinit(&worker->pre);
        strbuf_deinit(&worker->repaired);
        strbuf_deinit(&worker->normal[0]);
        strbuf_deinit(&worker->normal[1]);
    }
    free(trainer->workers);
    free(trainer->chunks);
    free(trainer->merges.data);
    word_counts_deinit(&trainer->tokens);
    pretokenizer_deinit(trainer->pre);
    normalizer_deinit(trainer->normalizer);
    arena_deinit(&trainer->arena);
    free(trainer);
}

/* --- counting words ----------------------------------------------------------------------------------------------- */

static Status chunk_count(const BpeTrainer *trainer, Worker *worker, Str text)
{
    if (utf8_valid_prefix(text.data, text.len) < text.len) {
        strbuf_clear(&worker->repaired);
        utf8_append_repaired(&worker->repaired, text.data, text.len);
        text = strbuf_str(&worker->repaired);
    }
    TRY(normalize(trainer->normalizer, &char_table, worker->pre.regex, worker->normal, text, &text));
    if (text.len == 0) return OK;
    if (trainer->scanner.kind != SCAN_NONE) {
        for (size_t at = 0, end; at < text.len; at = end) {
            end = scanner_next(&trainer->scanner, &char_table, text.data, at, text.len);
            word_counts_add(&worker->counts, (Str){text.data + at, end - at}, 1);
        }
        return OK;
    }
    TRY(pretokenize(trainer->pre, &char_table, &worker->pre, text, true, true, &text));
    for (size_t i = 0; i < worker->pre.pieces.len; i++) {
        Piece piece = worker->pre.pieces.data[i];
        word_counts_add(&worker->counts, (Str){text.data + piece.start, piece.end - piece.start}, 1);
    }
    return OK;
}

static void count_task(void *context, int64_t task, int index)
{
    BpeTrainer *trainer = context;
    Worker     *worker = &trainer->workers[index];
    if (worker->status != OK) return;
    worker->status = chunk_count(trainer, worker, trainer->chunks[task]);
    if (worker->status == OK) return;
    strncpy(worker->message, status_message(), sizeof worker->message - 1);
}

static void chunk_push(BpeTrainer *trainer, Str chunk)
{
    trainer->chunks = array_room(trainer->chunks, trainer->num_chunks + 1, &trainer->chunk_capacity, sizeof *trainer->chunks);
    trainer->chunks[trainer->num_chunks++] = chunk;
}

/* Cuts a long text into chunks. A chunk ends at a newline followed by a printable ASCII character: the hand-written scanners always end a
 * word there. */
static void text_chunk(BpeTrainer *trainer, Str text)
{
    while (text.len > CHUNK_BYTES && trainer->scanner.kind != SCAN_NONE) {
        size_t at = CHUNK_BYTES;
        while (at < text.len && (text.data[at - 1] != '\n' || text.data[at] <= ' ')) at++;
        chunk_push(trainer, (Str){text.data, at});
        text = (Str){text.data + at, text.len - at};
    }
    if (text.len) chunk_push(trainer, text);
}

Status bpe_trainer_add(BpeTrainer *trainer, const Str *texts, int64_t count)
{
    trainer->num_chunks = 0;
    for (int64_t i = 0; i < count; i++) text_chunk(trainer, texts[i]);
    pool_run(trainer->options.pool, (int64_t)trainer->num_chunks, count_task, trainer);
    for (int i = 0; i < trainer->num_workers; i++)
        FAIL_IF(trainer->workers[i].status != OK, trainer->workers[i].status, "%s", trainer->workers[i].message);
    return OK;
}

/* --- learning ----------------------------------------------------------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
    const WordCount *x = a, *y = b;
    size_t           len = x->word.len < y->word.len ? x->word.len : y->word.len;
    int              order = memcmp(x->word.data, y->word.data, len);
    return order ? order : (x->word.len > y->word.len) - (x->word.len < y->word.len);
}

/* Sums the tables of all workers and sorts the words, so that the order doesn't depend on which worker saw a word first. */
static void counts_sum(BpeTrainer *trainer, WordCounts *out)
{
    WordCounts all = {0};
    for (int i = 0; i < trainer->num_workers; i++) {
        const WordCounts *part = &trainer->workers[i].counts;
        for (size_t k = 0; k < part->len; k++) word_counts_add(&all, part->words[k].word, part->words[k].count);
    }
    if (all.len) qsort(all.words, all.len, sizeof *all.words, by_text);
    *out = all; /* sorting made its `slots` invalid: *out must only be iterated */
}

Status bpe_trainer_train(BpeTrainer *trainer)
{
    WordCounts words;
    int32_t    byte_ids[256];
    CHECK(!trainer->trained);
    trainer->trained = true;
    for (int i = 0; i < trainer->options.num_special_tokens; i++) {
        Str text = str_of(trainer->options.special_tokens[i]);
        FAIL_IF(text.len < 2, ERR_INVALID, "special token \"%s\": expected at least two characters", text.data);
        if (word_counts_find(&trainer->tokens, text) < 0) word_counts_add(&trainer->tokens, text, 0);
    }
    trainer->num_special = (int)trainer->tokens.len;
    for (uint32_t code = 0; code < 324; code++) {
        int byte = char_to_byte(code);
        if (byte < 0) continue;
        byte_ids[byte] = (int32_t)trainer->tokens.len;
        word_counts_add(&trainer->tokens, (Str){&(char){(char)byte}, 1}, 0);
    }
    counts_sum(trainer, &words);
    bpe_learn(&words, byte_ids, trainer->options.vocab_size, trainer->options.min_frequency, &trainer->tokens, &trainer->merges);
    word_counts_deinit(&words);
    return OK;
}

size_t bpe_trainer_num_merges(const BpeTrainer *trainer)
{
    return trainer->merges.len;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static void token_write(const BpeTrainer *trainer, int32_t id, StrBuf *scratch, StrBuf *out)
{
    Str token = trainer->tokens.words[id].word;
    if (id >= trainer->num_special) {
        strbuf_clear(scratch);
        append_byte_chars(scratch, token.data, token.len);
        token = strbuf_str(scratch);
    }
    json_write_string(out, token.data, token.len);
}

void bpe_trainer_write(const BpeTrainer *trainer, StrBuf *out)
{
    StrBuf scratch = {0};
    strbuf_puts(out, "{\n\"version\":\"1.0\",\n\"truncation\":null,\n\"padding\":null,\n\"added_tokens\":[");
    for (int i = 0; i < trainer->num_special; i++) {
        strbuf_printf(out, "%s\n{\"id\":%d,\"content\":", i ? "," : "", i);
        token_write(trainer, i, &scratch, out);
        strbuf_puts(out, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}");
    }
    strbuf_puts(out, "],\n\"normalizer\":{\"type\":\"NFC\"},\n\"pre_tokenizer\":");
    pre_json_write(&trainer->options, out);
    strbuf_puts(out, ",\n\"post_processor\":null,\n\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                     "\"trim_offsets\":false,\"use_regex\":false},\n\"model\":{\"type\":\"BPE\",\"dropout\":null,"
                     "\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                     "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\n\"vocab\":{");
    for (size_t id = 0; id < trainer->tokens.len; id++) {
        strbuf_puts(out, id ? ",\n" : "\n");
        token_write(trainer, (int32_t)id, &scratch, out);
        strbuf_printf(out, ":%zu", id);
    }
    strbuf_puts(out, "},\n\"merges\":[");
    for (size_t i = 0; i < trainer->merges.len; i++) {
        strbuf_puts(out, i ? ",\n[" : "\n[");
        token_write(trainer, trainer->merges.data[i].left, &scratch, out);
        strbuf_putc(out, ',');
        token_write(trainer, trainer->merges.data[i].right, &scratch, out);
        strbuf_putc(out, ']');
    }
    strbuf_puts(out, "]}\n}\n");
    strbuf_deinit(&scratch);
}

static void config_write(const BpeTrainOptions *options, StrBuf *out)
{
    const char *const tokens[] = {options->bos_token, options->eos_token, options->pad_token};
    strbuf_puts(out, "{\n  \"add_bos_token\": false,\n  \"add_eos_token\": false,\n");
    for (int i = 0; i < 3; i++) {
        strbuf_printf(out, "  \"%s_token\": ", (const char *[]){"bos", "eos", "pad"}[i]);
        if (tokens[i]) {
            json_write_string(out, tokens[i], strlen(tokens[i]));
        } else {
            strbuf_puts(out, "null");
        }
        strbuf_puts(out, ",\n");
    }
    strbuf_puts(out, "  \"clean_up_tokenization_spaces\": false,\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n");
}

static Status file_put(const char *dir, const char *name, const StrBuf *text)
{
    Arena  arena = {0};
    Status status = file_write_atomic(arena_printf(&arena, "%s/%s", dir, name), text->data, text->len);
    arena_deinit(&arena);
    return status;
}

Status bpe_trainer_save(const BpeTrainer *trainer, const char *dir)
{
    StrBuf model = {0}, config = {0};
    bpe_trainer_write(trainer, &model);
    config_write(&trainer->options, &config);
    Status status = file_make_dirs(dir);
    if (status == OK) status = file_put(dir, "tokenizer.json", &model);
    if (status == OK) status = file_put(dir, "tokenizer_config.json", &config);
    strbuf_deinit(&model);
    strbuf_deinit(&config);
    return status;
}
