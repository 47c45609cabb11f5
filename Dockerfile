# The deck and the CPU build of the engine in one image: engines are child processes of the deck.
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends libnuma1 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /srv/tierdeck

# The packages (about 2 GB) are a layer of their own: a change of the source does not install them again.
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY scripts scripts
RUN mkdir app engine && touch app/__init__.py engine/__init__.py \
    && ENGINE=cpu PIP_NO_CACHE_DIR=1 scripts/setup.sh run

COPY . .

RUN useradd --create-home --uid 1000 deck && mkdir /data && chown deck /data
USER deck
VOLUME /data
ENV TIERDECK_HOST=0.0.0.0 \
    TIERDECK_DATA_DIR=/data
EXPOSE 8700

HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD [".venv/bin/python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8700/healthz', timeout=4)"]

# No --service: the engines live in this container and end with it.
CMD [".venv/bin/tierdeck", "up"]
