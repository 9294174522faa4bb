{% include [cookiecutter.kind ~ '/flow.py', 'example/flow.py'] -%}
