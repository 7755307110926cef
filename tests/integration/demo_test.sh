#!/bin/sh
# The demo runs, shows a line of rates per second, holds the ratio, and ends well.
set -eu
out=$("$RP_DEMO" 2)
echo "$out"
echo "$out" | grep -q '^ *2s ' || exit 1
echo "$out" | grep -q 'ended well' || exit 1
[ "$("$RP_DEMO" --version)" = "replay-demo $RP_VERSION" ]
"$RP_DEMO" --help | grep -q '^Usage: replay-demo'
status=0
"$RP_DEMO" soon 2>/dev/null || status=$?
[ "$status" = 2 ]
