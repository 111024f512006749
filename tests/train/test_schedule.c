/* The learning rate, compared with its closed forms. */
#include "train/schedule.h"

#include "test.h"

static Schedule make(const char *shape, int64_t total, const char *more)
{
    Config   config;
    Schedule schedule = {0};
    char     text[512];
    StrBuf   problems = {0};
    snprintf(text, sizeof text, "learning_rate: 1.0\nlr_scheduler_type: %s\n%s", shape, more);
    EXPECT_OK(config_parse("test.yaml", text, strlen(text), NULL, 0, &config, &problems));
    EXPECT_OK(schedule_make(&config, total, &schedule));
    config_deinit(&config);
    strbuf_deinit(&problems);
    return schedule;
}

static void warm_up_rises_without_a_step_at_zero(void)
{
    Schedule s = make("constant", 100, "warmup_steps: 4\n");
    for (int i = 0; i < 4; i++) EXPECT_NEAR(schedule_lr(&s, i), (i + 1) / 5.0, 1e-15);
    EXPECT_NEAR(schedule_lr(&s, 4), 1.0, 0);
    EXPECT_NEAR(schedule_lr(&s, 99), 1.0, 0);
}

static void warmup_ratio_is_of_all_steps(void)
{
    Schedule s = make("constant", 100, "warmup_ratio: 0.1\n");
    EXPECT_INT(s.warmup, 10);
    s = make("constant", 100, "warmup_ratio: 0.1\nwarmup_steps: 3\n");
    EXPECT_INT(s.warmup, 3);
}

static void linear_falls_to_its_final_fraction(void)
{
    Schedule s = make("linear", 110, "warmup_steps: 10\nfinal_lr_fraction: 0.2\n");
    EXPECT_NEAR(schedule_lr(&s, 10), 1.0, 1e-15);
    EXPECT_NEAR(schedule_lr(&s, 60), 0.6, 1e-12);
    EXPECT_NEAR(schedule_lr(&s, 109), 1.0 - 0.99 * 0.8, 1e-12);
    EXPECT_NEAR(schedule_lr(&s, 200), 0.2, 1e-12);
}

static void cosine_is_half_a_wave(void)
{
    Schedule s = make("cosine", 100, "final_lr_fraction: 0.1\n");
    EXPECT_NEAR(schedule_lr(&s, 0), 1.0, 1e-15);
    EXPECT_NEAR(schedule_lr(&s, 50), 0.55, 1e-12);
    EXPECT_NEAR(schedule_lr(&s, 25), 0.1 + 0.9 * 0.5 * (1 + sqrt(0.5)), 1e-12);
}

static void wsd_is_constant_then_falls_over_the_cooldown(void)
{
    Schedule s = make("wsd", 100, "warmup_steps: 10\ncooldown_steps: 20\nfinal_lr_fraction: 0.5\n");
    EXPECT_NEAR(schedule_lr(&s, 40), 1.0, 0);
    EXPECT_NEAR(schedule_lr(&s, 80), 1.0, 1e-15);
    EXPECT_NEAR(schedule_lr(&s, 90), 0.75, 1e-12);
    EXPECT_NEAR(schedule_lr(&s, 99), 0.5 + 0.5 / 20, 1e-12);
}

static void what_doesnt_fit_is_refused(void)
{
    Config   config;
    Schedule s;
    StrBuf   problems = {0};
    EXPECT_OK(config_parse("t", "warmup_steps: 11\n", 17, NULL, 0, &config, &problems));
    EXPECT_FAILS(schedule_make(&config, 10, &s), ERR_INVALID, "warmup_steps");
    config_deinit(&config);
    strbuf_deinit(&problems);
}

TEST_MAIN(TEST(warm_up_rises_without_a_step_at_zero), TEST(warmup_ratio_is_of_all_steps), TEST(linear_falls_to_its_final_fraction),
          TEST(cosine_is_half_a_wave), TEST(wsd_is_constant_then_falls_over_the_cooldown), TEST(what_doesnt_fit_is_refused))
