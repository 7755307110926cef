#include "broker/table/groups.h"

#include "broker/select/keymap.h"
#include "broker/store/reserve.h"

#define NONE UINT32_MAX

void groups_init(struct groups *self, uint32_t capacity, uint32_t size, uint64_t *account)
{
    *self = (struct groups){.capacity = capacity, .size = size, .oldest = NONE, .newest = NONE};
    self->slots = reserve_map(capacity * sizeof *self->slots);
    self->leaders = keymap_new(account);
}

void groups_fini(struct groups *self)
{
    reserve_unmap(self->slots, self->capacity * sizeof *self->slots);
    keymap_destroy(&self->leaders);
    *self = (struct groups){0};
}

uint32_t groups_find(const struct groups *self, uint64_t group)
{
    return keymap_get(self->leaders, group);
}

uint32_t groups_enter(struct groups *self, uint32_t slot, uint64_t group)
{
    uint32_t leader = groups_find(self, group);
    self->hidden++;
    if (leader != NONE) {
        struct group_member *first = &self->slots[leader];
        self->slots[slot] = (struct group_member){.group = group, .leader = leader, .next = leader};
        self->slots[first->last].next = slot;
        first->last = slot;
        first->n++;
        return leader;
    }
    self->slots[slot] = (struct group_member){
        .group = group, .leader = slot, .next = slot, .last = slot, .n = 1, .older = self->newest, .newer = NONE};
    *(self->newest == NONE ? &self->oldest : &self->slots[self->newest].newer) = slot;
    self->newest = slot;
    self->n_open++;
    keymap_put(self->leaders, group, slot);
    return slot;
}

/* Takes an open group off the list. */
static void end_wait(struct groups *self, uint32_t leader)
{
    const struct group_member *first = &self->slots[leader];
    *(first->older == NONE ? &self->oldest : &self->slots[first->older].newer) = first->newer;
    *(first->newer == NONE ? &self->newest : &self->slots[first->newer].older) = first->older;
    keymap_remove(self->leaders, first->group);
    self->n_open--;
    self->hidden -= first->n;
}

void groups_close(struct groups *self, uint32_t leader)
{
    end_wait(self, leader);
    self->slots[leader].closed = 1;
}

void groups_leave(struct groups *self, uint32_t leader)
{
    if (!self->slots[leader].closed)
        end_wait(self, leader);
}
