#!/usr/bin/env bash
# Runs real programs under chaos, with many seeds, for the table of docs/found.md.
#
# usage: scripts/chaos.sh BIN CLIENTS [NAMES...]      (BIN: the folder with anyring; CLIENTS: where the end-to-end clients are built)
#
# SEEDS is the number of seeds for each program, from 1 on; the default is 100. NAMES are the names of single rows. Each
# run has an empty folder of its own and verifies its data. A program that is not installed is skipped, with the reason.
# The output is in .build/chaos.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

bin=$(realpath "${1:?usage: scripts/chaos.sh BIN CLIENTS [NAMES...]}")
clients=$(realpath -m "${2:?usage: scripts/chaos.sh BIN CLIENTS [NAMES...]}")
chosen=" ${*:3} "
seeds=${SEEDS:-100}
logs=$root/.build/chaos
passed=0 failed=0 skipped=0

# The words that start a server as an ordinary user, for servers that refuse to run as root.
as_user=()
if [ "$(id -u)" = 0 ]; then as_user=(setpriv --reuid=65534 --regid=65534 --clear-groups); fi

work=$(mktemp -d /var/tmp/anyring-chaos-XXXXXX)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir -p "$logs"
# An ordinary user may not be able to reach the folder of the build.
cp "$bin/anyring" "$bin/libanyring.so" "$work/"
export ANYRING_LIBRARY=$work/libanyring.so PATH=$PATH:/usr/sbin

is_chosen() { [ "$chosen" = "  " ] || [[ $chosen == *" $1 "* ]]; }
any_chosen() {
  local name
  for name; do if is_chosen "$name"; then return; fi; done
  return 1
}

# skip NAME REASON
skip() {
  is_chosen "$1" || return 0
  skipped=$((skipped + 1))
  echo "skip: $1: $2"
}

# row NAME RULES VERSION SCRIPT: runs SCRIPT by sh under chaos, in an empty folder for each seed, and prints a table row.
row() {
  local name=$1 rules=$2 version=$3 script=$4 log=$logs/$1.log status=0 said
  is_chosen "$name" || return 0
  # The script makes its own folder, since each seed is a run of it.
  script="d=\$(mktemp -d $work/run-XXXXXX) && cd \$d && { $script; }; s=\$?; rm -rf \$d; exit \$s"
  "${as[@]}" "$work/anyring" chaos --rules "$rules" --runs "$seeds" --timeout 60s -- sh -c "$script" \
    </dev/null >"$log" 2>&1 || status=$?
  said=$(grep -E '^anyring chaos: [0-9]+ of [0-9]+ seeds fail' "$log" | sed 's/^anyring chaos: //' || tail -n 1 "$log")
  if [ "$status" = 0 ]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAIL $name: status $status: $log"
  fi
  printf '| %s | %s | `%s` | %s |\n' "$name" "$version" "$rules" "$said"
}
as=()

version() { "$@" 2>&1 | grep -oE '[0-9]+\.[0-9]+(\.[0-9]+)*' | head -n 1 || true; }
crate() { sed -n "/^name = \"$2\"/{n;s/version = \"\(.*\)\"/\1/p}" "tests/e2e/clients/$1/Cargo.lock" | head -n 1; }

# The rules that every program here can deal with. Some programs also get `short` or `enter`.
calm=late,multishot,cancel,nobufs,overflow,busy,spurious,notify,edge

run_liburing_examples() {
  any_chosen {io_uring,link,ucontext}-cp || return 0
  LIBURING_SUITE=bookworm scripts/liburing-tests.sh fetch
  local home=.build/liburing-bookworm
  if [ -e $home/unavailable ]; then
    for name in io_uring-cp link-cp ucontext-cp; do skip $name "$(cat $home/unavailable)"; done
    return
  fi
  local source=$root/$home/source
  if [ ! -e "$source/examples/ucontext-cp" ]; then
    (cd "$source" && ./configure --cc=cc --cxx=c++ && make -C src && make -C examples) >"$logs/liburing-build.log" 2>&1
  fi
  local program bytes
  for program in io_uring-cp link-cp ucontext-cp; do
    bytes=300000
    if [ $program = ucontext-cp ]; then bytes=2000; fi # it waits between its transfers
    local copy="head -c $bytes /dev/urandom >in; $source/examples/$program in out >said && cmp in out"
    row "$program" "$calm" 2.3 "$copy"
  done
}

run_rust_clients() {
  any_chosen io-uring tokio-uring monoio compio || return 0
  tests/e2e/clients/build.sh "$clients" io-uring tokio-uring monoio compio >"$logs/clients.log" 2>&1
  # The client asks for whole transfers, in one call.
  row io-uring "$calm" "$(crate io-uring io-uring)" "$clients/io-uring file"
  row tokio-uring "short,$calm" "$(crate tokio-uring tokio-uring)" "$clients/tokio-uring file"
  row monoio all "$(crate monoio monoio)" "$clients/monoio"
  row compio all "$(crate compio compio)" "$clients/compio file"
}

run_netty() {
  local jars=$root/.build/netty
  if [ ! -d "$jars" ] || ! command -v java >/dev/null; then
    skip netty "no $jars, or no java"
    return
  fi
  local version echo="java -cp '$jars/*' $root/tests/e2e/clients/netty/Echo.java"
  version=$(basename "$jars"/netty-common-*.jar | grep -oE '[0-9.]+[0-9]')
  row netty "short,$calm" "$version" "$echo"
}

run_node() {
  local program
  program=$(realpath "$(scripts/node.sh --path)")
  # The script assumes that a write to a file is never short.
  local run="UV_USE_IO_URING=1 $program $root/tests/e2e/clients/node.js ."
  row node "$calm" "$(version "$program" --version)" "$run"
}

run_fio() {
  local job="fio --name=v --ioengine=io_uring --rw=randrw --bs=16k --size=512k --iodepth=8 --verify=crc32c --do_verify=1 --filename=f"
  row fio "$calm" "$(version fio --version)" "$job"
}

run_qemu() {
  local version io="qemu-io -f raw -i io_uring -t writeback"
  version=$(version qemu-img --version)
  local bench="truncate -s 4M disk && \
    qemu-img bench -f raw -i io_uring -t writeback -w --pattern=171 -c 1024 -d 32 -s 4096 --flush-interval=100 disk && \
    head -c 4194304 /dev/zero | tr '\\0' '\\253' | cmp - disk"
  row qemu-img "enter,$calm" "$version" "$bench"
  row qemu-io "enter,$calm" "$version" "truncate -s 4M disk && \
    $io -c 'write -P 17 0 4k' -c 'writev -P 85 1M 4k 64k 12k' -c 'write -P 51 2M 1M' -c flush \
    -c 'read -P 17 0 4k' -c 'readv -P 85 1M 12k 4k 64k' -c 'read -P 51 2M 1M' -c 'read -P 0 4k 60k' disk"
}

run_postgres() {
  is_chosen postgres || return 0
  local programs at="$work/postgres"
  mkdir "$at"
  if ! programs=$(scripts/postgres.sh place "$at"); then
    skip postgres "$programs"
    return
  fi
  install -d -o 65534 -g 65534 "$work/data" 2>/dev/null || mkdir "$work/data"
  chmod 1777 "$work"
  "${as_user[@]}" "$programs/initdb" --pgdata="$work/data/pg" --no-locale --encoding=UTF8 --username=tester --no-sync \
    --set=shared_buffers=2MB >"$logs/initdb.log" 2>&1
  local make="create table t as select i, repeat('x', 100) as x from generate_series(1, 40000) as i;"
  local server="$programs/postgres --single -D $work/data/pg -c io_method=io_uring -c io_combine_limit=4 postgres"
  # The server's first reads of each table find the files in the page cache only.
  echo "$make" | "${as_user[@]}" "$programs/postgres" --single -D "$work/data/pg" postgres >>"$logs/initdb.log" 2>&1
  as=("${as_user[@]}")
  local query="echo 'select count(*), sum(i), sum(length(x)) from t' | $server | grep -c -e '= \"40000\"' -e '= \"800020000\"' -e '= \"4000000\"' | grep -qx 3"
  row postgres "$calm" "$(version "$programs/postgres" --version)" "$query"
  as=()
}

run_mariadb() {
  is_chosen mariadb || return 0
  local usr=$root/.build/mariadb/root/usr
  scripts/mariadb.sh fetch
  if [ ! -d "$usr" ]; then
    skip mariadb "$(cat .build/mariadb/unavailable)"
    return
  fi
  local user="" server version make read
  if [ "$(id -u)" = 0 ]; then user=--user=root; fi
  version=$(LD_LIBRARY_PATH=$usr/lib/x86_64-linux-gnu version "$usr/sbin/mariadbd" --version)
  # The server executes the statements on its standard input, and ends. The second server reads the files of the first.
  server="env LD_LIBRARY_PATH=$usr/lib/x86_64-linux-gnu $usr/sbin/mariadbd --no-defaults --bootstrap --datadir=\$d/data \
    --lc-messages-dir=$usr/share/mysql --skip-networking --skip-grant-tables --innodb-log-file-size=8M \
    --innodb-buffer-pool-size=8M --innodb-linux-aio=io_uring $user"
  # Each line has one statement.
  make="create database test;
    create table test.t (id int primary key, v varchar(200), k int, index (k)) engine=innodb;
    insert into test.t select seq, repeat(md5(seq), 6), seq * 7 % 1000 from test.seq_1_to_20000;
    update test.t set k = k + 1 where id % 3 = 0;
    delete from test.t where id % 5 = 0;"
  read="check table test.t;
    select count(*), sum(crc32(v) = crc32(repeat(md5(id), 6))) into outfile '../out' from test.t;"
  printf '%s\n' "$make" >"$work/make.sql"
  printf '%s\n' "$read" >"$work/read.sql"
  local run="mkdir data; $server <$work/make.sql && $server <$work/read.sql && [ \"\$(cat out)\" = \"\$(printf '16000\\t16000')\" ]"
  row mariadb "$calm" "$version" "$run"
}

run_plocate() {
  local program=$root/.build/plocate/root/usr
  if command -v plocate >/dev/null; then program=/usr; fi
  if [ ! -x $program/bin/plocate ]; then
    skip plocate "there is none: scripts/setup.sh soak installs it"
    return
  fi
  is_chosen plocate || return 0
  cp "$program/bin/plocate" "$work/plocate" # Debian's is set-group-ID
  local version part finds="[ \$($work/plocate --database=$work/db -c needle) = 1800 ] && \
    $work/plocate --database=$work/db needle-3-77 | grep -q 3-77"
  for part in 1 2 3 4 5 6; do
    mkdir -p "$work/tree/$part"
    (cd "$work/tree/$part" && seq -f "needle-$part-%g" 300 | xargs touch)
  done
  "$program/sbin/updatedb.plocate" --output="$work/db" --database-root="$work/tree" --require-visibility=no
  version=$(version "$work/plocate" --version)
  row plocate "short,$calm" "$version" "$finds"
}

# anyring's hostile programs: their checks must also hold under chaos.
run_hostile() {
  is_chosen hostile || return 0
  if [ ! -x "$bin/anyring-hostile" ]; then
    skip hostile "scripts/build.sh has not built anyring-hostile"
    return
  fi
  local seed
  for ((seed = 1; seed <= (seeds + 9) / 10; seed++)); do
    if ANYRING_CHAOS=$seed ANYRING_CHAOS_RULES=all,lifetimes,misuse "$bin/anyring-hostile" run --runs 100 --jobs 2 \
      --library "$work/libanyring.so" >"$logs/hostile.log" 2>&1; then
      passed=$((passed + 1))
    else
      failed=$((failed + 1))
      echo "FAIL hostile: with ANYRING_CHAOS=$seed"
      tail -n 5 "$logs/hostile.log"
    fi
  done
}

# anyring-differential's random programs: each request has one final CQE.
run_differential() {
  is_chosen differential || return 0
  if [ ! -x "$bin/anyring-differential" ]; then
    skip differential "scripts/build.sh has not built anyring-differential"
    return
  fi
  local log=$logs/differential.log
  if "$bin/anyring-differential" chaos --bin "$work" --runs $((10 * seeds)) --jobs 4 >"$log" 2>&1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAIL differential: $log"
    tail -n 5 "$log"
  fi
}

# The conformance cases that hold under chaos, with the rules that change no answer.
run_conformance() {
  is_chosen conformance || return 0
  if [ ! -x "$bin/anyring-conformance" ]; then
    skip conformance "scripts/build.sh has not built anyring-conformance"
    return
  fi
  local log=$logs/conformance.log runs=$(((seeds + 19) / 20))
  if "$work/anyring" chaos --rules late,lifetimes,notify,edge --runs "$runs" --timeout 120s -- "$bin/anyring-conformance" --disturbed \
    --spread --quiet --jobs $((4 * $(nproc))) --expect "$root/tests/conformance/differences.txt" >"$log" 2>&1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAIL conformance: $log"
    tail -n 5 "$log"
  fi
}

echo "| program | version | rules | $seeds seeds |"
echo "|---|---|---|---|"
run_liburing_examples
run_rust_clients
run_qemu
run_plocate
run_fio
run_postgres
run_mariadb
run_node
run_netty
run_hostile
run_differential
run_conformance
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
