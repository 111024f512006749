/* The ring: one thread fills micro-batches in order, the caller takes them in order. The content of a micro-batch depends on its number
 * alone, so seeking only sets a number. */
#include "data/loader.h"

#include "base/c_locale.h"
#include "data/loader_rows.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Slot {
    Feeds  batch;
    Status status;
    char   message[STATUS_MESSAGE_BYTES];
} Slot;

struct Loader {
    Rows     rows;
    int32_t *memory; /* the batches of all slots */
    Slot    *slots;  /* (num_slots) prefetch + 1: the caller holds one slot */
    int      num_slots;
    int64_t  next_micro;            /* number of the micro-batch that loader_next hands out next */
    int64_t  first_step, first_row; /* step first_step begins with row first_row of the run */

    /* The fields below are shared with the thread, under `lock`. */
    pthread_t       thread;
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    bool            has_thread, stop, busy;
    int             first, ready; /* slots first .. first + ready - 1 are filled */
    int64_t         fill_micro;   /* number of the micro-batch that the thread fills next */
    int64_t         generation;   /* counts seeks: a batch begun before a seek is discarded */
};

int64_t loader_rows_per_step(const Loader *loader)
{
    const LoaderOptions *o = &loader->rows.options;
    return (int64_t)o->batch_size * o->grad_accum_steps * o->world_size;
}

int64_t loader_row_len(const Loader *loader)
{
    return loader->rows.options.seq_len;
}

int64_t loader_num_steps(const Loader *loader)
{
    int64_t left = loader->rows.total - loader->first_row, per_step = loader_rows_per_step(loader);
    return loader->rows.total < 0 ? -1 : loader->first_step + (left > 0 ? (left + per_step - 1) / per_step : 0);
}

int64_t loader_total_rows(const Loader *loader)
{
    return loader->rows.total;
}

static int64_t first_row_of(const Loader *loader, int64_t step)
{
    return loader->first_row + (step - loader->first_step) * loader_rows_per_step(loader);
}

int64_t loader_rows_before(const Loader *loader, int64_t step)
{
    int64_t rows = first_row_of(loader, step), total = loader->rows.total;
    return total >= 0 && rows > total ? total : rows; /* the last step may have fewer rows */
}

double loader_epoch(Loader *loader, int64_t step)
{
    return rows_epoch(&loader->rows, first_row_of(loader, step));
}

const char *loader_unseen(Loader *loader, int64_t steps)
{
    int source = rows_unseen(&loader->rows, first_row_of(loader, steps));
    return source < 0 ? NULL : loader->rows.sources[source].name;
}

const LoaderStats *loader_stats(const Loader *loader)
{
    return &loader->rows.stats;
}

static Status fill_batch(Loader *loader, int64_t number, Feeds *batch)
{
    const LoaderOptions *o = &loader->rows.options;
    batch->step_index = number / o->grad_accum_steps;
    batch->num_tokens = batch->num_trained = 0;
    int64_t place = first_row_of(loader, batch->step_index) + (number % o->grad_accum_steps * o->world_size + o->rank) * o->batch_size;
    for (int64_t b = 0; b < o->batch_size; b++) {
        RowPlace row;
        if (rows_locate(&loader->rows, place + b, &row))
            TRY(rows_fill(&loader->rows, &row, batch, b));
        else
            rows_fill_padding(&loader->rows, batch, b, 0);
    }
    return OK;
}

Status loader_step_tokens(Loader *loader, int64_t step, int64_t *out_count)
{
    CHECK(step >= 0);
    int64_t per_step = loader_rows_per_step(loader), sum = 0;
    for (int64_t i = 0; i < per_step; i++) {
        RowPlace row;
        if (rows_locate(&loader->rows, first_row_of(loader, step) + i, &row)) sum += rows_count_trained(&loader->rows, &row);
    }
    *out_count = sum;
    return OK;
}

Status loader_read_row(Loader *loader, int64_t index, Feeds *row)
{
    Rows *rows = &loader->rows;
    FAIL_IF(index < 0 || index >= rows->stats.num_rows, ERR_INVALID, "row %lld of %lld", (long long)index, (long long)rows->stats.num_rows);
    int source = 0;
    while (index >= rows->sources[source].num_rows) index -= rows->sources[source++].num_rows;
    row->num_tokens = row->num_trained = 0;
    return rows_fill(rows, &(RowPlace){.source = source, .row = index, .epoch = -1}, row, 0);
}

/* ---- the ring ---- */

static int64_t end_micro(const Loader *loader)
{
    int64_t steps = loader_num_steps(loader);
    return steps < 0 ? INT64_MAX : steps * loader->rows.options.grad_accum_steps;
}

static void slot_fill(Loader *loader, Slot *slot, int64_t number)
{
    slot->status = fill_batch(loader, number, &slot->batch);
    if (slot->status != OK) snprintf(slot->message, sizeof slot->message, "%s", status_message());
}

static void *prefetch_main(void *context)
{
    Loader *loader = context;
    pthread_mutex_lock(&loader->lock);
    while (!loader->stop) {
        if (loader->ready == loader->num_slots - 1 || loader->fill_micro >= end_micro(loader)) {
            pthread_cond_wait(&loader->changed, &loader->lock);
            continue;
        }
        Slot   *slot = &loader->slots[(loader->first + loader->ready) % loader->num_slots];
        int64_t number = loader->fill_micro, generation = loader->generation;
        loader->busy = true;
        pthread_mutex_unlock(&loader->lock);
        slot_fill(loader, slot, number);
        pthread_mutex_lock(&loader->lock);
        loader->busy = false;
        if (generation == loader->generation) {
            loader->ready++;
            loader->fill_micro++;
        }
        pthread_cond_broadcast(&loader->changed);
    }
    pthread_mutex_unlock(&loader->lock);
    return NULL;
}

/* Restarts the ring at `step`. A batch that the thread is filling is discarded. */
static void begin_at(Loader *loader, int64_t step, int64_t first_step, int64_t first_row)
{
    CHECK(step >= first_step && first_row >= 0);
    pthread_mutex_lock(&loader->lock);
    loader->generation++;
    while (loader->busy) pthread_cond_wait(&loader->changed, &loader->lock);
    loader->first_step = first_step;
    loader->first_row = first_row;
    loader->next_micro = step * loader->rows.options.grad_accum_steps;
    loader->first = loader->ready = 0;
    loader->fill_micro = loader->next_micro;
    pthread_cond_broadcast(&loader->changed);
    pthread_mutex_unlock(&loader->lock);
}

void loader_seek(Loader *loader, int64_t step)
{
    begin_at(loader, step, loader->first_step, loader->first_row);
}

void loader_resume(Loader *loader, int64_t step, int64_t rows)
{
    begin_at(loader, step, step, rows);
}

static Slot *take_slot(Loader *loader)
{
    pthread_mutex_lock(&loader->lock);
    while (loader->ready == 0) pthread_cond_wait(&loader->changed, &loader->lock);
    Slot *slot = &loader->slots[loader->first];
    loader->first = (loader->first + 1) % loader->num_slots;
    loader->ready--;
    pthread_cond_broadcast(&loader->changed);
    pthread_mutex_unlock(&loader->lock);
    return slot;
}

Status loader_next(Loader *loader, const Feeds **out_batch)
{
    *out_batch = NULL;
    if (loader->next_micro >= end_micro(loader)) return OK;
    Slot *slot = &loader->slots[0];
    if (loader->has_thread)
        slot = take_slot(loader);
    else
        slot_fill(loader, slot, loader->next_micro);
    loader->next_micro++;
    FAIL_IF(slot->status != OK, slot->status, "%s", slot->message);
    *out_batch = &slot->batch;
    return OK;
}

static void slots_init(Loader *loader)
{
    const LoaderOptions *o = &loader->rows.options;
    int64_t              numel = (int64_t)o->batch_size * o->seq_len;
    size_t               size = (size_t)feeds_numel(numel, loader->rows.inputs, o->num_inputs);
    loader->num_slots = (o->prefetch > 0 ? o->prefetch : 0) + 1;
    loader->slots = calloc_or_end((size_t)loader->num_slots, sizeof *loader->slots);
    loader->memory = calloc_or_end((size_t)loader->num_slots * size, sizeof *loader->memory);
    for (int i = 0; i < loader->num_slots; i++) {
        feeds_init(&loader->slots[i].batch, loader->memory + (size_t)i * size, numel, loader->rows.inputs, o->num_inputs);
    }
}

Status loader_create(const LoaderOptions *options, const LoaderSource *sources, int num_sources, Loader **out_loader)
{
    *out_loader = NULL;
    Loader *loader = calloc_or_end(1, sizeof *loader);
    pthread_mutex_init(&loader->lock, NULL);
    pthread_cond_init(&loader->changed, NULL);
    Status status = rows_init(&loader->rows, options, sources, num_sources);
    if (status != OK) {
        loader_destroy(loader);
        return status;
    }
    slots_init(loader);
    if (loader->num_slots > 1) {
        loader->has_thread = c_locale_thread(&loader->thread, prefetch_main, loader) == 0;
        if (!loader->has_thread) {
            loader_destroy(loader);
            FAIL(ERR_INTERNAL, "cannot start the loader's thread");
        }
    }
    *out_loader = loader;
    return OK;
}

void loader_destroy(Loader *loader)
{
    if (!loader) return;
    if (loader->has_thread) {
        pthread_mutex_lock(&loader->lock);
        loader->stop = true;
        pthread_cond_broadcast(&loader->changed);
        pthread_mutex_unlock(&loader->lock);
        pthread_join(loader->thread, NULL);
    }
    pthread_mutex_destroy(&loader->lock);
    pthread_cond_destroy(&loader->changed);
    rows_deinit(&loader->rows);
    free(loader->slots);
    free(loader->memory);
    free(loader);
}
