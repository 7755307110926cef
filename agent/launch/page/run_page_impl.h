/* What the files of this room share. */
#ifndef AGENT_LAUNCH_RUN_PAGE_IMPL_H
#define AGENT_LAUNCH_RUN_PAGE_IMPL_H

#include "agent/launch/observe/run_folder.h"
#include "agent/launch/page/run_page.h"
#include "agent/page/page.h"
#include "proto/http/http.h"

/* Where a run and its broker are found. */
struct page_place {
    char folder[FOLDER_SIZE], service[256], key_file[1024];
};

struct run_page {
    struct page_place place;
    char runs[FOLDER_SIZE];
    char token[HTTP_TOKEN];
    char address[96], url[192];
    struct page *page;
    struct http *http;
};

/* page_place_look.c: functions of a struct page_host, whose context is a struct page_place. */
void page_place_find(void *place, struct page_door *out);
void page_place_look(void *place, struct page_run *out);
/* The same from the run's folder alone. */
void page_place_look_folder(void *place, struct page_run *out);

/* run_files.c: handlers of requests, whose context is a struct run_page. */
void run_get_state(void *ctx, const struct http_request *request, struct http_reply *reply);
void run_get_history(void *ctx, const struct http_request *request, struct http_reply *reply);
void run_get_log(void *ctx, const struct http_request *request, struct http_reply *reply);
void run_get_runs(void *ctx, const struct http_request *request, struct http_reply *reply);
void run_get_run(void *ctx, const struct http_request *request, struct http_reply *reply);

#endif
