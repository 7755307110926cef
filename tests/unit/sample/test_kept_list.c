#include <stdint.h>

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/sample/samples.h"
#include "tests/support/test.h"

struct world {
    struct loop loop;
    struct broker_config config;
    struct samples samples;
    struct store store;
    struct table table;
    struct kept_list *kept;
};

static void begin(struct world *world)
{
    *world = (struct world){.config = {.memory_limit = 1 << 20}};
    chores_init(&world->loop.chores);
    world->samples = (struct samples){.loop = &world->loop, .config = &world->config, .store = &world->store};
    samples_init(&world->samples);
    world->kept = &world->samples.kept;
}

static struct kept_sample *add(struct world *world, uint64_t client, uint64_t id, bool answered)
{
    struct kept_sample *sample = kept_list_new(world->kept);
    assert_non_null(sample);
    sample->info = (struct kept_info){.client = client, .id = id, .table = &world->table, .answered = answered};
    sample->bytes = 100;
    sample->n = 3;
    kept_list_add(world->kept, kept_list_make_client(world->kept, client), sample);
    return sample;
}

TEST(samples_are_found_by_client_and_id)
{
    struct world world;
    begin(&world);
    struct kept_sample *a = add(&world, 1, 7, true), *b = add(&world, 2, 7, true), *c = add(&world, 1, 9, true);
    assert_ptr_equal(kept_list_find(kept_list_client(world.kept, 1), 7), a);
    assert_ptr_equal(kept_list_find(kept_list_client(world.kept, 2), 7), b);
    assert_ptr_equal(kept_list_find(kept_list_client(world.kept, 1), 9), c);
    assert_null(kept_list_find(kept_list_client(world.kept, 1), 8));
    assert_null(kept_list_find(kept_list_client(world.kept, 2), 9));
    assert_null(kept_list_client(world.kept, 3));
    assert_null(kept_list_make_client(world.kept, 0));
    assert_ptr_equal(world.kept->oldest, a);
    assert_ptr_equal(a->newer, b);
    assert_ptr_equal(a->after, c);
    assert_int_equal(world.kept->bytes, 300);
    samples_fini(&world.samples);
    assert_int_equal(world.kept->bytes, 0);
    assert_null(kept_list_client(world.kept, 1));
}

TEST(what_is_dropped_unanswered_counts_as_lost)
{
    struct world world;
    begin(&world);
    struct kept_sample *a = add(&world, 1, 1, true), *b = add(&world, 1, 2, false), *c = add(&world, 1, 3, true);
    kept_list_drop(world.kept, b);
    assert_int_equal(world.table.stats.orphaned_picks, 3);
    kept_list_drop(world.kept, a);
    assert_int_equal(world.table.stats.orphaned_picks, 3);
    assert_ptr_equal(world.kept->oldest, c);
    assert_ptr_equal(world.kept->newest, c);
    assert_int_equal(kept_list_client(world.kept, 1)->count, 1);
    assert_int_equal(world.kept->n_spare, 2);
    assert_ptr_equal(add(&world, 1, 4, true), a); /* its memory serves again */
    samples_fini(&world.samples);
}

TEST(the_client_longest_unheard_of_is_first)
{
    struct world world;
    begin(&world);
    for (uint64_t client = 1; client <= 3; client++)
        add(&world, client, 1, true);
    world.loop.now_ns = 5;
    kept_list_touch(world.kept, kept_list_client(world.kept, 1));
    assert_int_equal(world.kept->first_client->client, 2);
    assert_int_equal(world.kept->last_client->client, 1);
    assert_int_equal(world.kept->last_client->heard_ns, 5);
    kept_list_drop_client(world.kept, world.kept->first_client);
    assert_int_equal(world.kept->first_client->client, 3);
    assert_int_equal(world.kept->n_clients, 2);
    assert_int_equal(world.kept->bytes, 200);
    samples_fini(&world.samples);
}
