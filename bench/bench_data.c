/* Data figures beside their limits: tokenizing chat JSONL against encoding its rendered text alone, and reading shards at
 * random.
 *
 *   bench_data MODEL_DIR ROWS.jsonl [megabytes] [threads] [rounds]
 *
 * ROWS.jsonl holds conversations, which are repeated from the first until there are enough bytes. Or it holds rows
 * of questions and answers: each conversation is then made of two rows, a different pair each time.
 *
 * Encoding alone: tokenizer_encode over the same texts, rendered beforehand and held in memory, on as many threads. Both measurements take
 * turns, so that other work on the machine disturbs both; the best round of each counts. */
#include "base/pool.h"
#include "data/loader.h"
#include "data/mask.h"
#include "data/record.h"
#include "data/tokenize.h"
#include "files/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* CPU seconds of all threads of this process: other programs hardly change them. */
static double cpu_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void need(Status status)
{
    if (status == OK) return;
    fprintf(stderr, "%s\n", status_message());
    exit(status_exit_code(status));
}

static void put_message(StrBuf *out, const char *role, const JsonValue *content)
{
    strbuf_printf(out, "{\"role\": \"%s\", \"content\": ", role);
    json_write_string(out, content->string.data, content->string.len);
    strbuf_putc(out, '}');
}

static void put_chat(StrBuf *line, const JsonValue *first, const JsonValue *second)
{
    strbuf_puts(line, "{\"messages\": [");
    put_message(line, "user", json_get(first, "question"));
    strbuf_puts(line, ", ");
    put_message(line, "assistant", json_get(first, "answer"));
    strbuf_puts(line, ", ");
    put_message(line, "user", json_get(second, "question"));
    strbuf_puts(line, ", ");
    put_message(line, "assistant", json_get(second, "answer"));
    strbuf_puts(line, "]}\n");
}

static void write_chats(const char *rows_path, const char *path, size_t bytes)
{
    Arena       arena = {0};
    Str         text;
    FileWriter *writer;
    StrBuf      line = {0};
    need(file_read(&arena, rows_path, (size_t)2 << 30, &text));
    int64_t count = 0, most = 1;
    for (size_t i = 0; i < text.len; i++) most += text.data[i] == '\n';
    JsonValue *rows = arena_array(&arena, JsonValue, most);
    Str       *lines = arena_array(&arena, Str, most);
    for (const char *at = text.data, *end = text.data + text.len; at < end && (size_t)(at - text.data) < bytes; count++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        lines[count] = (Str){at, (size_t)(stop - at)};
        if (count == 0 || !json_get(&rows[0], "messages")) need(json_parse(&arena, rows_path, at, (size_t)(stop - at), &rows[count]));
        at = stop + 1;
    }
    need(file_writer_open(path, &writer));
    size_t done = 0;
    for (int64_t i = 0; done < bytes; i++) {
        strbuf_clear(&line);
        if (json_get(&rows[0], "messages")) {
            strbuf_append(&line, lines[i % count].data, lines[i % count].len);
            strbuf_putc(&line, '\n');
        } else {
            put_chat(&line, &rows[i % count], &rows[(i * 7 + i / count) % count]);
        }
        need(file_writer_append(writer, line.data, line.len));
        done += line.len;
    }
    need(file_writer_commit(writer));
    strbuf_deinit(&line);
    arena_deinit(&arena);
}

typedef struct Encoding {
    const Tokenizer   *tokenizer;
    TokenizerScratch **scratches;
    TokenIds          *ids; /* ids, one list for each worker */
    StrBuf             text;
    size_t            *begins; /* (count + 1) offsets */
    int64_t            count;
} Encoding;

/* Renders all conversations to texts. */
static void render_all(Encoding *e, const Template *tmpl, const char *path)
{
    char   *paths[] = {(char *)path};
    Reader *reader;
    Record  record;
    bool    has = true;
    Arena   arena = {0};
    size_t  capacity = 0;
    need(reader_open(paths, 1, &reader));
    for (;;) {
        need(reader_next(reader, &record, &has));
        if ((size_t)e->count + 1 >= capacity) e->begins = realloc(e->begins, (capacity = capacity * 2 + 1024) * sizeof *e->begins);
        e->begins[e->count] = e->text.len;
        if (!has) break;
        JsonValue      row;
        TemplateOutput output = {0};
        arena_reset(&arena);
        need(record_parse(&arena, &record, &row));
        need(template_render(tmpl, &(TemplateInput){.messages = json_get(&row, "messages")}, &output));
        strbuf_append(&e->text, output.text.data, output.text.len);
        template_output_deinit(&output);
        e->count++;
    }
    reader_close(reader);
    arena_deinit(&arena);
}

static void encode_some(void *context, int64_t task, int worker)
{
    Encoding *e = context;
    for (int64_t i = task * 256; i < e->count && i < (task + 1) * 256; i++) {
        e->ids[worker].len = 0;
        need(tokenizer_encode(e->tokenizer, e->scratches[worker], e->text.data + e->begins[i], e->begins[i + 1] - e->begins[i],
                              (EncodeOptions){0}, &e->ids[worker]));
    }
}

static double encode_alone(Encoding *e, int threads, double *out_cpu)
{
    ThreadPool *pool;
    need(pool_create(threads, &pool));
    e->scratches = calloc((size_t)threads, sizeof *e->scratches);
    e->ids = calloc((size_t)threads, sizeof *e->ids);
    for (int i = 0; i < threads; i++) e->scratches[i] = tokenizer_scratch_create(e->tokenizer);
    double start = now(), cpu_start = cpu_now();
    pool_run(pool, (e->count + 255) / 256, encode_some, e);
    double seconds = now() - start;
    *out_cpu = cpu_now() - cpu_start;
    for (int i = 0; i < threads; i++) {
        tokenizer_scratch_destroy(e->scratches[i]);
        token_ids_deinit(&e->ids[i]);
    }
    free(e->scratches);
    free(e->ids);
    pool_destroy(pool);
    return seconds;
}

static void bench_loader(const char *dir)
{
    ShardSet     set;
    Loader      *loader;
    const Feeds *batch;
    need(shard_set_open(dir, &set));
    LoaderSource  source = {.shards = &set};
    LoaderOptions options = {.mode = LOADER_PACKED, .seq_len = 2048, .batch_size = 16, .shuffle = true, .num_epochs = 1};
    double        start = now();
    need(loader_create(&options, &source, 1, &loader));
    printf("loader: packing %lld documents took %.2f s, efficiency %.2f %%\n", (long long)set.num_documents, now() - start,
           100 * loader_stats(loader)->efficiency);
    int64_t tokens = 0;
    start = now();
    for (;;) {
        need(loader_next(loader, &batch));
        if (!batch) break;
        tokens += batch->num_tokens;
    }
    printf("loader: %.0f M tokens/s of shuffled rows (tokens, labels, masks, positions), one thread\n",
           (double)tokens / (now() - start) * 1e-6);
    int32_t *ids = malloc(sizeof *ids * (size_t)set.num_tokens);
    int64_t  read = 0;
    start = now();
    for (int64_t i = 0; i < 2000000; i++) {
        const Shard *shard = set.shards[i % set.num_shards];
        int64_t      begin, count;
        shard_document(shard, permute_index(i % shard_info(shard)->num_documents, shard_info(shard)->num_documents, 1, 0), &begin, &count);
        need(shard_read(shard, begin, count, ids));
        read += count;
    }
    printf("shard: random documents %.0f M tokens/s, one thread (bar: 50)\n", (double)read / (now() - start) * 1e-6);
    free(ids);
    loader_destroy(loader);
    shard_set_close(&set);
}

typedef struct Figures {
    double wall, cpu; /* best seconds so far; 0: none yet */
} Figures;

static void take_best(Figures *best, double wall, double cpu)
{
    if (best->wall == 0 || wall < best->wall) best->wall = wall;
    if (best->cpu == 0 || cpu < best->cpu) best->cpu = cpu;
}

static void compare(Encoding *e, const TokenizeJob *job, int rounds, TokenizeReport *report)
{
    Figures alone = {0}, all = {0};
    int64_t bytes;
    need(file_size(job->dataset->path, &bytes));
    double size = (double)bytes * 1e-6;
    for (int round = 0; round < rounds; round++) {
        double cpu, wall = encode_alone(e, job->num_threads, &cpu);
        take_best(&alone, wall, cpu);
        if (round > 0) need(file_remove_tree(report->dir));
        double start = now(), cpu_start = cpu_now();
        need(tokenize_dataset(job, report));
        take_best(&all, now() - start, cpu_now() - cpu_start);
    }
    printf("tokenize: %.0f MB of chats, %d threads, best of %d: encode alone %.2f s (%.1f MB/s of text), tokenize %.2f s (%.1f MB/s of "
           "JSONL): %.2f x (bar: 1.3), in CPU time %.2f x\n",
           size, job->num_threads, rounds, alone.wall, (double)e->text.len / alone.wall * 1e-6, all.wall, size / all.wall,
           all.wall / alone.wall, all.cpu / alone.cpu);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: bench_data MODEL_DIR ROWS.jsonl [megabytes] [threads] [rounds]\n");
        return 2;
    }
    size_t     bytes = (size_t)(argc > 3 ? atoi(argv[3]) : 100) << 20;
    int        threads = argc > 4 ? atoi(argv[4]) : 2, rounds = argc > 5 ? atoi(argv[5]) : 3;
    char       dir[] = "/tmp/bench-data-XXXXXX", path[100];
    Tokenizer *tokenizer;
    Template  *tmpl;
    Encoding   encoding = {0};
    if (!mkdtemp(dir)) return 1;
    snprintf(path, sizeof path, "%s/chats.jsonl", dir);
    need(tokenizer_load(argv[1], &tokenizer));
    need(template_load(argv[1], NULL, false, &tmpl));
    write_chats(argv[2], path, bytes);
    encoding.tokenizer = tokenizer;
    render_all(&encoding, tmpl, path);
    DatasetOptions dataset = {.path = path};
    TokenizeJob    job = {.dataset = &dataset, .tokenizer = tokenizer, .tmpl = tmpl, .cache_dir = dir, .num_threads = threads};
    TokenizeReport report;
    compare(&encoding, &job, rounds, &report);
    bench_loader(report.dir);
    need(file_remove_tree(dir));
    strbuf_deinit(&encoding.text);
    free(encoding.begins);
    template_destroy(tmpl);
    tokenizer_destroy(tokenizer);
    return 0;
}
