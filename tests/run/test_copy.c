/* Programs that keep values in the host's memory give the bits of a program without copies. Weights are copied in at use; results are
 * copied out and in again, on separate streams. */
#include "base/philox.h"
#include "text_run.h"

static const char plain[] = "graph \"plain\"\n"
                            "input x: bf16[16,64]\n"
                            "input dy: bf16[16,64]\n"
                            "state w0: bf16[64,64]\n"
                            "state w1: bf16[64,64]\n"
                            "y0: bf16[16,64] = linear(x, w0)\n"
                            "a: bf16[16,64] = gelu(y0)\n"
                            "y: bf16[16,64] = linear(a, w1)\n"
                            "d.a: bf16[16,64] = linear_dx(dy, w1) backward\n"
                            "d.y0: bf16[16,64] = gelu_bwd(d.a, y0) backward\n"
                            "d.x: bf16[16,64] = linear_dx(d.y0, w0) backward\n"
                            "output y = y\n"
                            "output d.x = d.x\n";

/* One result is copied to lasting host memory, another to host memory of the program. */
static const char copies[] = "graph \"copies\"\n"
                             "input x: bf16[16,64]\n"
                             "input dy: bf16[16,64]\n"
                             "state w0: bf16[64,64] space=host\n"
                             "state w1: bf16[64,64] space=host\n"
                             "state kept: bf16[16,64] space=host\n"
                             "up0: bf16[64,64] = copy(w0) at_use stream=copy_in\n"
                             "y0: bf16[16,64] = linear(x, up0)\n"
                             "up1: bf16[64,64] = copy(w1) at_use stream=copy_in\n"
                             "out0: bf16[16,64] home=kept = copy(y0) stream=copy_out\n"
                             "a: bf16[16,64] = gelu(y0)\n"
                             "y: bf16[16,64] = linear(a, up1)\n"
                             "out: bf16[16,64] space=host = copy(y) stream=copy_out\n"
                             "d.a: bf16[16,64] = linear_dx(dy, up1) backward\n"
                             "back: bf16[16,64] = copy(out0) backward stream=copy_in after=y\n"
                             "d.y0: bf16[16,64] = gelu_bwd(d.a, back) backward\n"
                             "d.x: bf16[16,64] = linear_dx(d.y0, up0) backward\n"
                             "output y = out\n"
                             "output d.x = d.x\n";

/* Codes of 8 and 4 bits, and integers. */
static const char codes[] = "graph \"codes\"\n"
                            "input e: e4m3[3,10]\n"
                            "input n: nf4[3,10]\n"
                            "input i: i64[7]\n"
                            "e.out: e4m3[3,10] space=host = copy(e) stream=copy_out\n"
                            "n.out: nf4[3,10] space=host = copy(n) stream=copy_out\n"
                            "i.out: i64[7] space=host = copy(i) stream=copy_out\n"
                            "e.in: e4m3[3,10] = copy(e.out) stream=copy_in\n"
                            "n.in: nf4[3,10] = copy(n.out) stream=copy_in\n"
                            "i.in: i64[7] = copy(i.out) stream=copy_in\n"
                            "output e = e.in\n"
                            "output n = n.in\n"
                            "output i = i.in\n";

/* Fills entries with values that depend only on their name. */
static void fill(Run *r, bool floats)
{
    for (int i = 0; i < r->plan->num_entries; i++) {
        const PlanEntry *entry = &r->plan->entries[i];
        int64_t          bytes = entry->place.bytes, numel = type_numel(&entry->type);
        uint8_t         *data = arena_alloc(&r->arena, (size_t)bytes);
        for (int64_t k = 0; k < (floats ? numel : bytes); k++) {
            uint32_t word = philox4x32((uint32_t)k, 0, 0, 0, philox_name_key(entry->name)).v[0];
            if (floats) ((uint16_t *)(void *)data)[k] = bf16_from_f32(philox_uniform(word) - 0.5f);
            if (!floats) data[k] = (uint8_t)word;
        }
        EXPECT_OK(session_write(r->session, entry->name, data, (size_t)bytes));
    }
}

static void copies_leave_the_bits(void)
{
    enum { BYTES = 16 * 64 * 2 };
    static const char *const outputs[] = {"y", "d.x"};
    uint8_t                  want[2][BYTES], got[BYTES];
    const char *const        texts[] = {plain, copies};
    for (int t = 0; t < 2; t++) {
        Run r;
        run_open(&r, texts[t]);
        fill(&r, true);
        for (int turn = 0; turn < 1 + 2 * t; turn++) { /* a replay gives the same */
            EXPECT_OK(session_run(r.session, r.program));
            for (int i = 0; i < 2; i++) {
                EXPECT_OK(session_output(r.session, r.program, outputs[i], t ? got : want[i], BYTES));
                EXPECT(!t || memcmp(want[i], got, BYTES) == 0);
            }
        }
        EXPECT_INT(plan_host_bytes(r.plan) > 0, t);
        run_close(&r);
    }
}

static void any_dtype_is_copied(void)
{
    static const char *const names[] = {"e", "n", "i"};
    Run                      r;
    run_open(&r, codes);
    fill(&r, false);
    EXPECT_OK(session_run(r.session, r.program));
    for (int i = 0; i < 3; i++) {
        uint8_t want[64], got[64];
        size_t  bytes = (size_t)plan_find(r.plan, names[i])->place.bytes;
        EXPECT_OK(session_read(r.session, names[i], want, bytes));
        EXPECT_OK(session_output(r.session, r.program, names[i], got, bytes));
        EXPECT(memcmp(want, got, bytes) == 0);
    }
    run_close(&r);
}

TEST_MAIN(TEST(copies_leave_the_bits), TEST(any_dtype_is_copied))
