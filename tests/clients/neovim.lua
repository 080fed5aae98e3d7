-- What drivers in Neovim share: plugins, settings, and waiting.

local neovim = { scenario = vim.env.SCENARIO, project = vim.env.PROJECT }

--- Loads plugins from $CLIENT_PLUGINS.
function neovim.add(plugins)
  for _, plugin in ipairs(plugins) do
    vim.opt.rtp:prepend(vim.env.CLIENT_PLUGINS .. "/" .. plugin)
  end
  vim.opt.swapfile = false
end

function neovim.wait(what, is_met)
  if not vim.wait(20000, is_met, 20) then
    error("waited in vain: " .. what)
  end
end

function neovim.until_started()
  neovim.wait("started", function()
    return vim.uv.fs_stat(neovim.project .. "/started") ~= nil
  end)
end

--- Performs `steps`, prints what `shown` returns, and ends Neovim.
function neovim.run(steps, shown)
  local ok, result = xpcall(steps, debug.traceback)
  if not ok then
    io.stderr:write(result .. "\n")
  end
  io.stdout:write(shown() .. "\n")
  vim.cmd(ok and "qall!" or "cquit 1")
end

--- The complete text of a buffer.
function neovim.text(buffer)
  return table.concat(vim.api.nvim_buf_get_lines(buffer, 0, -1, false), "\n")
end

return neovim
